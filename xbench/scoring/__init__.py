"""Measure predictions against the truth as rows, and compute numbers from rows."""
