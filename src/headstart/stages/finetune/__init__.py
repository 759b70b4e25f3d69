"""`headstart finetune`: fine-tune a checkpoint for a task, and compare the result with baselines."""
