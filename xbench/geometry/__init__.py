"""Coordinates: shapes, regions, what hides them, grids, preprocessing."""

import os

# Otherwise albumentations asks the network for its latest version on import.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
