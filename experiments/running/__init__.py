"""What runs experiments: seeds over processes, the files that a run leaves, what experiments cost, their list."""
