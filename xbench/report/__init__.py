"""From finished runs to findings: statistics, tables, figures, and one page."""
