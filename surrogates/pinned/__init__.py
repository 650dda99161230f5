"""The Gaussian process whose value is pinned at one point: a GPyTorch kernel, and a fast engine for one data set."""
