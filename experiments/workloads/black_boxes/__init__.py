"""Real black boxes that install from PyPI and bring what they need: ``BLACK_BOXES``, a file a family.

Nothing is downloaded, and a package is imported when its problem is made. ``make(seed)`` is a problem of its own for
each seed, and a function: what a package draws, it draws from the seed.
"""

from experiments.workloads.black_boxes import digits, locomotion, metric, rocket, tuning, wind_farm
from experiments.workloads.black_boxes.black_box import BlackBox

FAMILIES = (tuning, rocket, wind_farm, locomotion, digits, metric)

BLACK_BOXES: dict[str, BlackBox] = {box.name: box for family in FAMILIES for box in family.PROBLEMS}
"""All problems by name, those of a family side by side."""

__all__ = ["BLACK_BOXES", "BlackBox"]
