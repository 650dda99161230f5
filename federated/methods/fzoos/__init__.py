"""FZooS."""
