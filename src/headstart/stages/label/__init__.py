"""`headstart label`: choose the rows that are worth labeling, label them, and add them to the training data."""
