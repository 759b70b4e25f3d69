"""Fine-tuning all-MiniLM-L6-v2 on SST-2: Headstart against Trainer (peft for LoRA), dynamic padding, same format."""

from __future__ import annotations

from itertools import count

from finetuning import Ours
from side_by_side import arguments, in_turns, number_format, report
from trainers import choose_attention, samples_per_second
from transformers import DataCollatorWithPadding

WINDOW = 8
"""Batches are sorted by length in windows of this size. A repetition reads whole windows, with short and long texts."""


def main() -> None:
    """Measure full fine-tuning and LoRA and print one line of JSON for each."""
    options = arguments(__doc__ or "")
    rows, steps = (512, WINDOW) if options.quick else (16_384, 3 * WINDOW)
    for name in ("full", "lora"):
        ours = Ours(name, rows)
        model = ours.adaptation.adapt(ours.source)
        collator = DataCollatorWithPadding(ours.reading.tokenizer)
        measured = (ours.features, collator, ours.batch_size, steps, number_format())
        attention = choose_attention(model, *measured)
        ours.examples_per_second(WINDOW)
        seeds = count()
        found = in_turns(
            options.repetitions,
            ours=lambda: ours.examples_per_second(steps),  # noqa: B023
            theirs=lambda: samples_per_second(model, *measured, seed=next(seeds)),  # noqa: B023
        )
        report(f"fine-tuning SST-2, {name}, against Trainer in {number_format()}", found["ours"], found["theirs"], 1.5,
               "examples/s", their_attention=attention)  # fmt: skip


if __name__ == "__main__":
    main()
