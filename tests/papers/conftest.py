import pytest

from tests.papers.agreement import TOLERANCE, largest


@pytest.fixture
def agree(record_property):
    """Compares a transcription's array of numbers with the project's, and notes the largest difference."""

    def compare(transcription, project, expected, given, tolerance=TOLERANCE):
        largest(record_property, transcription, project, [(expected, given)], tolerance)

    return compare
