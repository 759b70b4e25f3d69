"""Contracts, config, registry, artifacts, errors: what everything else builds on, without torch."""
