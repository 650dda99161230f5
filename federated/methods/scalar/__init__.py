"""HiSo and DeComFL: algorithms that send scalars only."""
