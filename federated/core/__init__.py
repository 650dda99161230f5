"""Algorithms as messages: the two halves, what they send, and the ledger."""
