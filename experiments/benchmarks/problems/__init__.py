"""All methods and their rivals on problems that nobody here chose."""
