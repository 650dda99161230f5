"""Figures of Katyusha: Zhang and Tang, Zeroth-order Katyusha, for composite convex optimization."""
