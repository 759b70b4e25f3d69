"""Predictions of a fine-tuned model for every row of a file."""
