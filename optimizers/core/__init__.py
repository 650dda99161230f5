"""The foundations of every method: the ask/tell optimizer, batches, records, states, options."""
