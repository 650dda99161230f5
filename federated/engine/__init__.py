"""The in-process engine: rounds, hosts of clients, worker processes, faults."""
