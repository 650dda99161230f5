"""Replacements of BoTorch's Gaussian process models, with posteriors of the gradient."""
