"""Which documents go into the corpus, in which proportions."""
