"""Pictures on disk the way each dataset is published, with what must come back when they are read.

Each module has a `write_<dataset>(root) -> Official`; with `outside`, an annotation reaches beyond the frame. Nothing
here reads `xbench.data` or the table of findings: spellings and rules are written a second time on purpose.
"""
