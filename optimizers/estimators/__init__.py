"""Gradient estimators from function values."""
