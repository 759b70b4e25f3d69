"""What tasks use: the engine, the files of a part, row counts, words and n-grams."""
