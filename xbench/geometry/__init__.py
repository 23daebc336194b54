"""Coordinates: grids, coverage of pixels, preprocessing."""
