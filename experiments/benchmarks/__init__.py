"""Benchmarks of the library against its alternatives."""
