"""Fourier features of a kernel, and the linear surrogate on them."""
