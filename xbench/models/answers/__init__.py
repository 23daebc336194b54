"""Models that answer in words, boxes or points, a file each."""
