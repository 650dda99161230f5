"""What an experiment is made of: settings, records, verdicts, tables, and one look for all figures."""
