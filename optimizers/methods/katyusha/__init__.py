"""ZO-L-Katyusha and its baselines."""
