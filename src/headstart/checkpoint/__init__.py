"""Checkpoints from outside: a folder is checked first, and then only its data is loaded, never code."""
