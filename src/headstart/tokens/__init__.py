"""From text to rows of token ids: tokenizer training, sentence starts, memory-mapped shards, packed rows."""
