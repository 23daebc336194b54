"""Tables: what stands in them, and how they are written."""
