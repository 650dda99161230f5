"""Real black boxes (``BLACK_BOXES``) whose packages on PyPI contain everything that they need; one file per family.

Nothing is downloaded. A package is imported when its problem is created. ``make(seed)`` returns a different,
deterministic problem for each seed.
"""

from experiments.workloads.black_boxes import digits, fits, locomotion, metric, photographs, rocket, tuning, wind_farm
from experiments.workloads.black_boxes.black_box import BlackBox

FAMILIES = (tuning, rocket, wind_farm, locomotion, digits, metric, photographs, fits)

BLACK_BOXES: dict[str, BlackBox] = {box.name: box for family in FAMILIES for box in family.PROBLEMS}
"""All problems by name, grouped by family."""

__all__ = ["BLACK_BOXES", "BlackBox"]
