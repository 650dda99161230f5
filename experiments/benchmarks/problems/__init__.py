"""A benchmark of all methods and their rivals on third-party problems."""
