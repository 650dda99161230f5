"""Experiments on tools of the papers: random features, and the calibration of gradient posteriors."""
