"""Clients of stores: each lists objects and reads them in ranges."""
