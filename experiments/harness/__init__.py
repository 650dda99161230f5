"""The parts of an experiment: settings, records, curves and verdicts."""
