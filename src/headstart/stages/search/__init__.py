"""`headstart index` and `headstart search`: passages by meaning."""
