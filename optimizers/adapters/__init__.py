"""Adapters for SciPy, BoTorch loops, torch modules and Ray."""
