"""Cholesky factors that are checked, grow by rows, or are updated when a row is replaced."""
