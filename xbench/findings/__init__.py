"""Findings, prompts and published numbers."""
