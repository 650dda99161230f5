"""The width of the search of a descent on a trajectory, and the radius of its local queries."""

from __future__ import annotations

from optimizers.core.bounds import Domain, search_width


def search_lengths(domain: Domain | None, radius: float | None) -> tuple[float, float]:
    """The width of the search and the radius of local queries, in search units.

    With a finite box, the width is its mean nonzero side and the radius 0.03 of it by default. Otherwise the radius is
    0.1 by default, and the width ten radii.
    """
    width = search_width(domain)
    if width is not None:
        return width, radius or 0.03 * width
    return 10.0 * (radius or 0.1), radius or 0.1
