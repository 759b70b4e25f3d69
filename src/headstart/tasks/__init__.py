"""Kinds of labelled problems, one file each, and how labelled rows and checkpoints are read."""
