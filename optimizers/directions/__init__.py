"""Directions addressed by seed, step and row: the same bits on every machine."""
