"""The methods, one file for each algorithm."""
