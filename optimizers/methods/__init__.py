"""The methods, an algorithm a file."""
