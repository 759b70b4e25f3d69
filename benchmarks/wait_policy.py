"""Speed with threads that sleep while they wait (`OMP_WAIT_POLICY=PASSIVE`), against OpenMP's own policy.

Each case runs on a quiet machine and beside one other busy process, because a laptop is never quiet. Each repetition
runs in a new process, because OpenMP reads its settings when it loads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from side_by_side import arguments, in_turns, report

from headstart.stages.runs.environment import KEEP, TUNABLES, WAIT_POLICY

CASES = ("pre-training", "fine-tuning", "tokenizing")
_BUSY = "while True: pass"


def main() -> None:
    """Measure each case and print one line of JSON for each."""
    if "--side" in sys.argv:
        case, quick = sys.argv[-2:]
        print(_SPEEDS[case](quick == "quick"))
        return
    options = arguments(__doc__ or "", repetitions=3)
    for case in CASES:
        for where, beside in (("quiet", nullcontext), ("beside a busy process", busy_process)):
            with beside():
                found = in_turns(
                    options.repetitions,
                    passive=lambda: speed(case, options.quick, "PASSIVE"),  # noqa: B023
                    default=lambda: speed(case, options.quick, None),  # noqa: B023
                )
            goal = 1.5 if where != "quiet" and case != "tokenizing" else 0.95
            unit = "tokens/s" if case == "pre-training" else "rows/s"
            report(f"wait policy, {case}, {where}, against OpenMP's own", *found.values(), goal, unit)


def speed(case: str, quick: bool, policy: str | None) -> float:
    """Run a case in a new process with a wait policy, and return its speed."""
    environment = {name: value for name, value in os.environ.items() if name != WAIT_POLICY} | {TUNABLES: KEEP}
    environment |= {} if policy is None else {WAIT_POLICY: policy}
    command = [sys.executable, __file__, "--side", case, "quick" if quick else "whole"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.split()[-1])


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _pretraining(quick: bool) -> float:
    from pretraining import Ours

    ours = Ours()
    return ours.tokens_per_second(ours.warm_up(quick))


def _finetuning(quick: bool) -> float:
    from finetuning import Ours

    ours = Ours("full", rows=640)
    ours.examples_per_second(2)
    return ours.examples_per_second(3 if quick else 15)


def _tokenizing(quick: bool) -> float:
    import time

    from texts import megabytes_of_wikipedia
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = list(megabytes_of_wikipedia(1 if quick else 10))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.train_from_iterator(texts[:1000], trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    start = time.perf_counter()
    tokenizer.encode_batch(texts)
    return len(texts) / (time.perf_counter() - start)


_SPEEDS = {"pre-training": _pretraining, "fine-tuning": _finetuning, "tokenizing": _tokenizing}

if __name__ == "__main__":
    main()
