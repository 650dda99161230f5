"""HiSo and DeComFL, which communicate scalars only."""
