"""`headstart export`: a fine-tuned model in the formats of other tools, compared with the model in torch."""
