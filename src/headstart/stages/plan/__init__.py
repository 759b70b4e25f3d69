"""`headstart plan`: the cost of a recipe before it runs."""
