"""The papers' figures and tables, with one folder per paper."""
