"""HiSo and DeComFL on one machine."""
