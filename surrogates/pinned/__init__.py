"""The Gaussian process that is 0 at one point, the pin: a GPyTorch kernel, and a fast posterior for one data set."""
