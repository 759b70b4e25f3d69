"""`headstart index` and `headstart search`: semantic search over passages."""
