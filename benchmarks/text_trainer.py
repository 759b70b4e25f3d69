"""Causal LM and span corruption at size small: Headstart against Trainer with a plain collator, in the same format.

Both use AdamW, so that both compute the same operations.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from pretraining import CAUSAL_LM, SPAN_CORRUPTION, Ours
from side_by_side import arguments, in_turns, number_format, report
from trainers import Rows, choose_attention, samples_per_second
from transformers import DataCollatorForLanguageModeling

from headstart.core.data import Sample

CASES = {
    "causal_lm, small decoder": (CAUSAL_LM, "AutoModelForCausalLM"),
    "span_corruption, small t5": (SPAN_CORRUPTION, "AutoModelForSeq2SeqLM"),
}


def main() -> None:
    """Measure both and print one line of JSON for each; tokens are those that the network reads."""
    options = arguments(__doc__ or "", repetitions=3)
    for name, (overrides, auto_class) in CASES.items():
        ours = Ours(*overrides)
        steps = ours.warm_up(options.quick)
        rows = Rows(ours.rows.rows([Sample(0, i) for i in range(1024)]).ids)
        torch.manual_seed(0)
        model = getattr(transformers, auto_class).from_config(ours.model.config)
        # transformers has no collator for span corruption. Trainer gets Headstart's, which is to its advantage.
        collator: Any = (
            DataCollatorForLanguageModeling(ours.tokenizer, mlm=False)
            if "Causal" in auto_class
            else ours.objective.collator(ours.tokenizer)
        )
        measured = (rows, collator, ours.batch_size, steps, number_format())
        attention = choose_attention(model, *measured)
        per_row = ours.learner.tokens(ours.batches(1)[0]) / ours.batch_size
        found = in_turns(
            options.repetitions,
            ours=lambda: ours.tokens_per_second(steps),  # noqa: B023
            theirs=lambda: per_row * samples_per_second(model, *measured),  # noqa: B023
        )
        report(f"{name}, against Trainer in {number_format()}", found["ours"], found["theirs"], 2.0, "tokens/s",
               their_attention=attention)  # fmt: skip


if __name__ == "__main__":
    main()
