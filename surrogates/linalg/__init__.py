"""Cholesky factors that are checked, extended by rows, or updated when a row is replaced."""
