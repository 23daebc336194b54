"""Shipped configurations: `models/` and `data/` compose to pairs by name, such as `clip_siim`."""
