"""Duplicates, repeated lines and overlap with evaluation sets."""
