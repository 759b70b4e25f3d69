"""Which documents go into the corpus, and in which proportions."""
