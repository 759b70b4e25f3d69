"""Peak memory and speed of the causal-LM loss with a vocabulary of 32,768: in chunks against full logits.

The decoder has no layers, only embedding, final normalization, head and loss, so that only the loss is measured.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from side_by_side import arguments, in_turns, number_format, report
from transformers import AutoModelForCausalLM, GPT2Config

from headstart.evaluation.memory import PeakMemory
from headstart.objectives.causal_lm import CausalLM
from headstart.training import precision

ROWS, LENGTH, VOCABULARY = 16, 256, 32_768
QUICK_ROWS = 4


def once(kind: str, count: int) -> tuple[float, float]:
    """Return the seconds of a forward and backward pass, and the megabytes that it adds to the peak."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=256, n_layer=0, n_head=4, n_positions=LENGTH)
    model, ids = AutoModelForCausalLM.from_config(config), torch.randint(VOCABULARY, (count, LENGTH))
    objective = CausalLM(CausalLM.Config())
    batch = {"input_ids": ids, "labels": ids, "weights": torch.ones(ids.shape)}

    def step(rows: slice, length: int = LENGTH) -> None:
        with precision.autocast(number_format(), torch.device("cpu")):
            if kind == "chunked":
                loss = objective.loss(model, {name: tensor[rows, :length] for name, tensor in batch.items()})
            else:
                # The loss of transformers, from the logits of every position.
                loss = model(input_ids=ids[rows, :length], labels=ids[rows, :length], use_cache=False).loss
        loss.backward()
        model.zero_grad()

    # A few tokens load weights, gradients and code into memory; any further memory is used by the loss.
    step(slice(0, 1), length=8)
    # Reset Linux's record of peak memory, so that the peak of importing libraries does not hide a lower one.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    memory = PeakMemory()
    before = memory.megabytes()
    step(slice(None))
    peak = memory.stop() - before
    return statistics.median(timed(lambda: step(slice(None))) for _ in range(3)), peak


def timed(act: Callable[[], None]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def in_a_process(kind: str, count: int) -> tuple[float, float]:
    """Measure in a new process, because peak memory never decreases."""
    command = [sys.executable, __file__, "--side", kind, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, megabytes = done.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def main() -> None:
    """Measure both variants; print one line of JSON for memory and one for speed."""
    if "--side" in sys.argv:
        print(*once(sys.argv[-2], int(sys.argv[-1])))
        return
    options = arguments(__doc__ or "")
    memory: dict[str, list[float]] = {"chunked": [], "full": []}

    def side(kind: str) -> float:
        seconds, megabytes = in_a_process(kind, QUICK_ROWS if options.quick else ROWS)
        memory[kind].append(megabytes)
        return seconds

    found = in_turns(options.repetitions, chunked=lambda: side("chunked"), full=lambda: side("full"))
    report("memory of the causal-LM loss, against full logits", memory["chunked"], memory["full"], 1 / 0.3, "MB",
           less_is_better=True)  # fmt: skip
    report("time of the causal-LM loss, against full logits", found["chunked"], found["full"], 1.0, "s",
           less_is_better=True)  # fmt: skip


if __name__ == "__main__":
    main()
