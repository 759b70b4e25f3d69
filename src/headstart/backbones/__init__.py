"""Network families by named size, over transformers' own configs."""
