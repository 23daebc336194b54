"""Processes that load images."""
