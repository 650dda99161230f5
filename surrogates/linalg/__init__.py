"""Cholesky factors that grow, move and are made positive definite."""
