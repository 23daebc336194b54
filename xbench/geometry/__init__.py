"""Coordinates: shapes, regions, what hides them, grids, preprocessing."""
