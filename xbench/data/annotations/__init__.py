"""Annotation files and the shapes in them."""
