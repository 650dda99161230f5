"""The page of results, and the guide on it."""
