"""Cholesky factors: safe ones, growing ones, and one whose row is replaced."""
