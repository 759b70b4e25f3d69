"""What `config` is made of: the text of a recipe, the sentences about what is wrong in it, and its schema."""
