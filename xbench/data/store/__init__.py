"""Prepared images on disk, and the key that tells when they are stale."""
