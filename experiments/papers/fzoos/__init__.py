"""Figures of FZooS (Shu et al., 2024)."""
