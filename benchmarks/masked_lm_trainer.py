"""Masked-LM pre-training: our loop against transformers' Trainer as run_mlm sets it up, same model and rows."""

from __future__ import annotations

import torch
from pretraining import Ours
from side_by_side import arguments, in_turns, report
from trainers import Rows, choose_attention, samples_per_second
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from headstart.core.contracts import Sample


def main() -> None:
    """Measure mini and small against Trainer in fp32 and in bf16, one line of JSON each."""
    options = arguments(__doc__ or "", repetitions=3)
    for size in ("mini", "small"):
        ours = Ours(f"backbone.size={size}")
        steps = 2 if options.quick else 8
        rows = Rows(ours.rows.rows([Sample(0, i) for i in range(1024)]).ids, ours.tokenizer)
        collator = DataCollatorForLanguageModeling(ours.tokenizer, mlm_probability=0.15)
        torch.manual_seed(0)
        models = {bf16: AutoModelForMaskedLM.from_config(ours.model.config) for bf16 in (False, True)}
        attention = {
            bf16: choose_attention(model, rows, collator, ours.batch_size, steps, bf16)
            for bf16, model in models.items()
        }
        ours.tokens_per_second(3)

        def theirs(bf16: bool) -> float:
            return ours.length * samples_per_second(models[bf16], rows, collator, ours.batch_size, steps, bf16)  # noqa: B023

        found = in_turns(
            options.repetitions,
            ours=lambda: ours.tokens_per_second(steps),  # noqa: B023
            fp32=lambda: theirs(False),
            bf16=lambda: theirs(True),
        )
        for kind, goal in (("fp32", 6.0), ("bf16", 2.5)):
            report(
                f"masked LM, {size} encoder, against Trainer in {kind}", found["ours"], found[kind], goal, "tokens/s",
                their_attention=attention[kind == "bf16"],
            )  # fmt: skip


if __name__ == "__main__":
    main()
