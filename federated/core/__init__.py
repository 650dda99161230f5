"""The server and client of a federated algorithm, their messages, and the ledger of costs."""
