"""Running experiments: seeds over processes, result files, and the list of experiments."""
