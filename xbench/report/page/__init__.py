"""The page: everything in one file, to be opened in a browser."""
