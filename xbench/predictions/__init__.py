"""Readers of predictions that were made elsewhere."""
