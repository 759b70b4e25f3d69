"""Contracts, configs, registry, artifacts and errors: the base of everything else, without torch."""
