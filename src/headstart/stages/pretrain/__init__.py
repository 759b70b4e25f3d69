"""`headstart pretrain`: raw text or a finished corpus to a checkpoint."""
