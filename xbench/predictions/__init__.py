"""Readers of stored predictions and answers, which need neither torch nor a model."""

from xbench.predictions.families import FAMILIES as FAMILIES
from xbench.predictions.families import family_named as family_named
