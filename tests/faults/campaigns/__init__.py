"""Faults, one file each, that a run must survive; the tests do a few of each, `run.py` the whole number."""
