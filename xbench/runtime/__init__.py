"""Digests, locks, processes, paths and time."""
