"""What `config` is made of: the text of a recipe, and the sentences about what is wrong in it."""
