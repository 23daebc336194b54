"""The machine: digests, locks, processes, paths, time."""
