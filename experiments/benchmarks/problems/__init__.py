"""A benchmark of this library's methods and other libraries' methods on third-party problems."""
