"""ELECTRA with transformers' Trainer: Headstart provides only the collator and the loss."""

import gzip
from pathlib import Path

from transformers import Trainer, TrainingArguments

from headstart.backbones.encoder import Encoder
from headstart.objectives import ReplacedToken
from headstart.tokens.tokenizer import TokenizerConfig, train

text = Path(__file__).parents[2] / "recipes" / "quickstart" / "data" / "kjv.txt.gz"
verses = gzip.decompress(text.read_bytes()).decode().splitlines()[:2000]
tokenizer = train(verses, TokenizerConfig(kind="wordpiece", vocab_size=1000), seed=0)
examples = [{"input_ids": ids} for ids in tokenizer(verses, truncation=True, max_length=64)["input_ids"]]

objective = ReplacedToken(rate=0.15, generator=0.5)
collator = objective.collator(tokenizer)
backbone = Encoder(Encoder.Config(kind="electra", size="tiny"))
model = objective.assemble(
    lambda auto_class, part="", scale=1.0, **changes: backbone.build(
        collator.vocabulary, 64, auto_class, scale, **changes
    )
)
arguments = TrainingArguments(
    output_dir="runs/electra", max_steps=40, per_device_train_batch_size=16, learning_rate=1e-3, logging_steps=10,
    save_strategy="no", report_to=[], disable_tqdm=True,
)  # fmt: skip
Trainer(model, arguments, data_collator=collator, train_dataset=examples).train()
for name, part in objective.parts(model).items():  # the discriminator, and the generator in a subfolder
    part.save_pretrained(f"runs/electra/{name}")
