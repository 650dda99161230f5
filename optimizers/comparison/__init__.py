"""Compares this project's methods, SciPy's and CMA-ES on the user's function."""
