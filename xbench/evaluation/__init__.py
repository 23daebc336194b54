"""From a model's outputs to numbers."""
