"""Studies: one question, a grid of cells, one table that tells the truth."""
