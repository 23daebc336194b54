"""Coordinates: shapes, regions, grids, preprocessing."""
