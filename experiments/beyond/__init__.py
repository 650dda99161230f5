"""Experiments that compare our rules with the papers' rules on fresh seeds."""
