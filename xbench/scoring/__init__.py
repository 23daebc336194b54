"""From predictions and truth to rows, and from rows to numbers."""
