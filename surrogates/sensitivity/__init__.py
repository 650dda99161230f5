"""Quantities from the posterior of a gradient: sensitivities, active subspaces, partial dependence, and their plots."""
