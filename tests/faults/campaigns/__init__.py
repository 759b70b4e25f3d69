"""Faults that a run must survive, one file each; the tests inject a few of each, `run.py` the full number."""
