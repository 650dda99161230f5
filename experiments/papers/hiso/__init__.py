"""Figures and tables of HiSo (Li et al., 2025)."""
