"""`headstart probe`: what a network knows, one page over several models."""
