"""Model families with named sizes, built from transformers configs."""
