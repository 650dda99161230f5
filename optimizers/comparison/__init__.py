"""Comparison of methods on the user's own function, with methods of SciPy and CMA-ES among them."""
