"""Fourier features of a kernel, and the surrogate that is linear in them."""
