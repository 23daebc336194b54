"""Reports, panels and overlays on Weights & Biases."""
