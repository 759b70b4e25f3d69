"""Cleaning steps and quality rules."""
