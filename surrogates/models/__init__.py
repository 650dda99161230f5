"""Gaussian processes that drop in for BoTorch's, with the posteriors of their gradients."""
