"""What a transcription and a run of the project are compared by."""

import numpy as np

TOLERANCE = 1e-9


def largest(record_property, transcription, run, pairs, tolerance=TOLERANCE):
    """Record and print the largest difference over pairs of equal shape, at least one, and hold it to the tolerance."""
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in pairs]
    assert pairs and all(one.shape == other.shape for one, other in pairs)
    differences = np.concatenate([np.abs(one - other).ravel() for one, other in pairs])
    assert len(differences)
    difference = float(differences.max())
    record_property("transcription", transcription)
    record_property("run", run)
    record_property("largest_difference", difference)
    print(f"{transcription} | {run} | {difference:.1e}")  # noqa: T201
    assert difference <= tolerance  # NaN is not
