"""`headstart serve`: one backbone, many tasks, over HTTP."""
