"""Kernels: their gradient blocks, radial profiles and one pass over the data."""
