"""`headstart pretrain`: raw text to a checkpoint."""
