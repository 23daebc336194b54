"""Datasets, a file each."""
