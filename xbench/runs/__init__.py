"""The files of a run: written here, read here."""
