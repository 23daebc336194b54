"""Figures, as PDF, SVG and PNG."""
