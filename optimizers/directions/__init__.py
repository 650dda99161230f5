"""Random directions addressed by seed, step and row, with the same bits on every machine."""
