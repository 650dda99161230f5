"""The derived GP, the GP of observed gradients, and what ties them to GPyTorch and BoTorch."""
