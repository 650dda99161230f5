"""The trajectory of queries, and the Gaussian process on the queries nearest to a point."""
