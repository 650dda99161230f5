"""Compares methods, also SciPy's and CMA-ES, on the user's function."""
