"""The federated algorithms."""
