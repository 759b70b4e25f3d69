"""Expand a study into cells and run them."""
