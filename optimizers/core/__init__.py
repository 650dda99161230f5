"""What every method stands on: the ask/tell optimizer, batches, records, states, options."""
