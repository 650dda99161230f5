"""Objectives of the experiments: test functions, attacks on images, metrics, controllers and language models."""
