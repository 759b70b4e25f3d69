"""Attention heads: the relations of grammar that they find, what switching one off costs, and their tables."""
