"""`headstart multitask`: several tasks in one run, with a shared body and a head for each."""
