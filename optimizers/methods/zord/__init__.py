"""ZoRD and its least-squares baseline: descent along gradients estimated from earlier queries."""
