"""ZO-L-Katyusha and its baselines, for convex functions with a constraint or another prox."""
