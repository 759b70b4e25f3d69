"""`headstart init`: from a file of labeled rows to splits and a recipe that runs."""
