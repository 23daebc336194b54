"""Commands that a user types, a file each."""
