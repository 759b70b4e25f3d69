"""Masked-LM pre-training: Headstart against transformers' Trainer with run_mlm's setup, same model and rows.

Headstart computes in the machine's fastest format; Trainer in fp32, its default, and in bf16 if that is the fastest.
Both use AdamW. `time_to_loss` and docs/results/learning.py measure the cost and gain of Muon.
"""

from __future__ import annotations

from functools import partial

import torch
from pretraining import Ours
from side_by_side import arguments, in_turns, number_format, report
from trainers import Rows, choose_attention, samples_per_second
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from headstart.core.data import Sample

GOALS = {"fp32": 6.0, "bf16": 2.5}


def main() -> None:
    """Measure the mini and the small encoder against Trainer in each format; print one line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=3)
    formats = ("fp32", "bf16")[: 1 + (number_format() == "bf16")]
    for size in ("mini", "small"):
        ours = Ours(f"backbone.size={size}", "training.optim=adamw")
        steps = ours.warm_up(options.quick)
        rows = Rows(ours.rows.rows([Sample(0, i) for i in range(1024)]).ids, ours.tokenizer)
        collator = DataCollatorForLanguageModeling(ours.tokenizer, mlm_probability=0.15)
        torch.manual_seed(0)
        models = {kind: AutoModelForMaskedLM.from_config(ours.model.config) for kind in formats}
        attention = {
            kind: choose_attention(model, rows, collator, ours.batch_size, steps, kind)
            for kind, model in models.items()
        }

        def theirs(kind: str) -> float:
            return ours.length * samples_per_second(models[kind], rows, collator, ours.batch_size, steps, kind)  # noqa: B023

        found = in_turns(
            options.repetitions,
            ours=lambda: ours.tokens_per_second(steps),  # noqa: B023
            **{kind: partial(theirs, kind) for kind in formats},
        )
        for kind in formats:
            report(
                f"masked LM, {size} encoder, against Trainer in {kind}", found["ours"], found[kind], GOALS[kind],
                "tokens/s", our_format=number_format(), their_attention=attention[kind],
            )  # fmt: skip


if __name__ == "__main__":
    main()
