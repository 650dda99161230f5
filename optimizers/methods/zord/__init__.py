"""ZoRD, and other descent along gradients learned from the trajectory."""
