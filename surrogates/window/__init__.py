"""The trajectory of queries, and the Gaussian process on those nearest to a point."""
