"""The papers' figures and tables, a folder a paper."""
