"""The probes, one file each."""
