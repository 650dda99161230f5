"""Writes results as Markdown pages, with a guide to the methods, and publishes them."""
