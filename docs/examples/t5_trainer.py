"""T5 with transformers' Trainer: Headstart provides only the collator."""

import gzip
from pathlib import Path

from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments

from headstart.objectives import SpanCorruption
from headstart.tokens.tokenizer import TokenizerConfig, train

text = Path(__file__).parents[2] / "recipes" / "quickstart" / "data" / "kjv.txt.gz"
verses = gzip.decompress(text.read_bytes()).decode().splitlines()[:2000]
tokenizer = train(verses, TokenizerConfig(kind="unigram", vocab_size=1000), seed=0)

objective = SpanCorruption(density=0.15, mean_length=3.0, sentinels=20)
tokenizer.add_special_tokens({"extra_special_tokens": objective.special_tokens()})
examples = [{"input_ids": ids} for ids in tokenizer(verses, truncation=True, max_length=128)["input_ids"]]

config = T5Config(
    vocab_size=len(tokenizer), d_model=128, d_kv=64, d_ff=512, num_layers=2, num_heads=2,
    pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.sep_token_id,
    decoder_start_token_id=tokenizer.pad_token_id,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="runs/t5", max_steps=60, per_device_train_batch_size=16, learning_rate=3e-3, logging_steps=10,
    save_strategy="no", report_to=[], disable_tqdm=True,
)  # fmt: skip
trainer = Trainer(
    T5ForConditionalGeneration(config), arguments, data_collator=objective.collator(tokenizer), train_dataset=examples
)
trainer.train()
trainer.save_model()
