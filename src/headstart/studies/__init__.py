"""Studies: one question, a grid of cells, and tables with seeds, tests, baselines and costs."""
