"""`headstart finetune`: checkpoint, task and adaptation to a model."""
