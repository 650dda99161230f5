"""Running an optimizer on an objective: the loop, its workers, interrupts and checkpoints."""
