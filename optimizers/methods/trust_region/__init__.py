"""A trust-region method on a Gaussian process that is pinned at the best point."""
