"""The optimization methods."""
