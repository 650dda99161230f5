"""ZoRD, and what else descends along gradients learned from the trajectory."""
