"""Engines that run a federation in one process or over worker processes, and faults to test it with."""
