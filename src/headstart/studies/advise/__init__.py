"""`headstart advise`: which method for these labels? A ladder of methods, cheapest first, within a time budget."""
