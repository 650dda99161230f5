"""The optimizers in scipy, in BoTorch loops and on torch modules."""
