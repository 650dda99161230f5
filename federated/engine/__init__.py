"""Engines that run a federation in one process or in worker processes."""
