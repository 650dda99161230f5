"""The default method: a trust region with a Gaussian process that is pinned at the best point."""
