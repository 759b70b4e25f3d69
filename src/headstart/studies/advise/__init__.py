"""`headstart advise`: which method for these labels? It tries methods, cheapest first, within a time budget."""
