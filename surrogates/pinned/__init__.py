"""The Gaussian process whose value is pinned at one point: its GPyTorch kernel, and the fast engine for one data set."""
