"""Kernels: their values, gradient blocks and distances, and the pass over the data that gradients are made of."""
