"""Pictures written to disk the way each dataset is published, with what must come back when they are read.

One module a dataset, each with a function `write_<dataset>(root) -> Official`. Nothing here reads `xbench.data` or the
table of findings: spellings and rules are written down a second time on purpose.
"""
