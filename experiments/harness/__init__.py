"""What every experiment runs in: settings, records, verdicts, results, the command line."""
