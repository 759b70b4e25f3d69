"""`headstart doctor`: what this machine can do, and whether a run is healthy."""
