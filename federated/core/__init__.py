"""The two halves of a federated algorithm, their messages, and the ledger of what they cost."""
