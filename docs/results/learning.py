"""Write docs/results/learning.md: which mask rate, optimizer, schedule and batch size learn faster.

python docs/results/learning.py alone|together [--tokens 5e5] [--seeds 3] [--jobs 2] [--only-table]

`alone` makes one change at a time; `together` combines the changes that helped, with more tokens. Every run is
`headstart pretrain recipes/objectives/mini.yaml` with the same number of tokens and its own complete schedule. All are
evaluated by the loss at 15 % masked tokens on held-out rows of 128 tokens, whatever their training settings. A seed
determines the weights, the order, the masks and the held-out documents, so variants are compared seed by seed. The
first variant also runs with twice or half the tokens: the gain from doubling converts a difference in loss to tokens.
The cost of a token is the processor time of the whole command on one core, minimum over seeds: other work on the
machine can only increase it, and wall-clock time would include that work. The product of both is the time to the first
variant's loss. Finished runs are skipped, so the script can be interrupted and restarted at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from pages import is_finished, processor_seconds, read, run_all, write

RECIPE = "recipes/objectives/mini.yaml"


class Study(NamedTuple):
    """Variants that read the same number of tokens, and the factor for the extra run of the first variant."""

    variants: Mapping[str, tuple[str, ...]]
    tokens: float
    besides: float


PLAIN = "15 % masked, Muon at 1e-3, linear"
FIRST = ("training.optim=muon", "training.learning_rate=1e-3", "training.lr_scheduler_type=linear",
         "training.batch_warmup_ratio=0")  # fmt: skip
"""Settings of the first variant, on which all others build, independent of the current recipe."""
GROWING = ("training.batch_warmup_ratio=0.3", "training.batch_warmup_start=0.25")
ALONE = {
    PLAIN: (),
    "20 % masked": ("objective.rate=0.2",),
    "30 % masked": ("objective.rate=0.3",),
    "40 % masked": ("objective.rate=0.4",),
    "Muon at 2e-3": ("training.learning_rate=2e-3",),
    "AdamW at 1e-3": ("training.optim=adamw",),
    "AdamW at 2e-3": ("training.optim=adamw", "training.learning_rate=2e-3"),
    "cosine schedule": ("training.lr_scheduler_type=cosine",),
    "trapezoid schedule": ("training.lr_scheduler_type=trapezoid",),
    "batches from a quarter, over 0.3": GROWING,
    "rows of 64 first, for 0.3": ("training.seq_length=[{length: 64, share: 0.3}, {length: 128, share: 0.7}]",),
}
FASTER = ("training.learning_rate=2e-3", "training.lr_scheduler_type=trapezoid")
TOGETHER = {
    PLAIN: (),
    "Muon at 2e-3, trapezoid": FASTER,
    "Muon at 2e-3, trapezoid, growing batches": (*FASTER, *GROWING),
    "AdamW at 2e-3, trapezoid, growing batches": ("training.optim=adamw", *FASTER, *GROWING),
}
STUDIES = {"alone": Study(ALONE, 5e5, 2), "together": Study(TOGETHER, 1e6, 0.5)}
HOME, PAGE = Path("runs/learning"), Path(__file__).with_name("learning.md")
ROWS, LENGTH = 1024, 128


class Run(NamedTuple):
    """One pre-training run: its variant, its overrides, the seed and the number of tokens."""

    variant: str
    changes: tuple[str, ...]
    seed: int
    tokens: float

    @property
    def folder(self) -> Path:
        """Return its output folder."""
        name = "".join(letter if letter.isalnum() else "-" for letter in self.variant.lower())
        return HOME / f"{self.tokens:.0f}" / f"{name}-{self.seed}"

    @property
    def command(self) -> list[str]:
        """Return its `headstart` arguments."""
        own = [f"output={self.folder}", f"seed={self.seed}", f"training.budget={self.tokens:.0f} tokens"]
        return ["pretrain", RECIPE, *own, "training.eval_count=0", *FIRST, *self.changes]

    @property
    def receipt(self) -> Path:
        """Return the file with its processor time."""
        return self.folder.with_name(f"{self.folder.name}.seconds.json")

    def do(self) -> None:
        """Train unless finished. The time of a resumed run is incomplete and not recorded."""
        whole = not self.folder.exists()
        seconds = processor_seconds(self.command, threads=1)
        if whole:
            self.receipt.write_text(json.dumps(seconds), encoding="utf-8")

    @property
    def seconds(self) -> float | None:
        """Return its processor time in seconds, or None if it was resumed."""
        return float(json.loads(self.receipt.read_text(encoding="utf-8"))) if self.receipt.is_file() else None

    @property
    def loss(self) -> float:
        """Return the held-out loss of a finished run at 15 % masked tokens, computed once."""
        kept = self.folder.with_name(f"{self.folder.name}.loss.json")
        if not kept.is_file():
            kept.write_text(json.dumps(_measure(self.folder)), encoding="utf-8")
        return float(json.loads(kept.read_text(encoding="utf-8")))


def _measure(run: Path) -> float:
    from transformers import AutoModelForMaskedLM

    from headstart.core import config
    from headstart.objectives.masked_lm import MaskedLM
    from headstart.stages.pretrain.build import tokenizer_of
    from headstart.stages.pretrain.learner import CorpusRows, PretrainLearner
    from headstart.stages.pretrain.prepare import prepare
    from headstart.stages.pretrain.recipe import PretrainRecipe
    from headstart.tokens.rows import cut

    recipe = config.fill(PretrainRecipe, read(run)["recipe"])
    prepared = prepare(recipe.corpus, tokenizer_of(recipe), recipe.seed, run / "prepared", quiet=True)
    objective = MaskedLM(MaskedLM.Config(rate=0.15))
    rows = cut(prepared.corpora[0].validation, prepared.vocabulary, objective.row_shape(LENGTH))
    model = AutoModelForMaskedLM.from_pretrained(str(run))
    held_out = [CorpusRows("", 1.0, rows)]
    return PretrainLearner(model, objective, held_out, held_out, prepared.vocabulary, 0).validate(ROWS)["loss"]


def table(study: Study, seeds: int) -> str:
    """Return a row for each variant: loss, difference from the first, tokens and time to the first variant's loss."""
    runs = {name: _finished(name, changes, seeds, study.tokens) for name, changes in study.variants.items()}
    first = next(iter(runs))
    other = _finished(first, study.variants[first], seeds, study.besides * study.tokens)
    base = {run.seed: run.loss for run in runs[first]}
    apart = {run.seed: run.loss - base[run.seed] for run in other if run.seed in base}
    doubled = {seed: difference / math.log2(study.besides) for seed, difference in apart.items()}
    lines = [
        "| variant | seeds | held-out loss | difference from the first | tokens | time per token | time |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for variant, done in runs.items():
        if not done:
            lines.append(f"| {variant} | 0 | not run | | | | |")
            continue
        paired = {run.seed: run.loss - base[run.seed] for run in done if run.seed in base}
        fewer = _part([paired[s] for s in paired if s in doubled], [doubled[s] for s in paired if s in doubled])
        price = _price(done, runs[first])
        cells = [
            variant, str(len(done)), _spread(run.loss for run in done),
            "–" if variant == first else _spread(paired.values(), sign=True),
            _factor(fewer), _factor(price), _factor(fewer and price and fewer * price),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if other:
        cells = [f"{first}, {study.besides:g} × the tokens", str(len(other)), _spread(run.loss for run in other)]
        lines.append(f"| {' | '.join(cells)} | {_spread(apart.values(), sign=True)} | {study.besides:.2f} | | |")
    return "\n".join(lines)


def _finished(variant: str, changes: tuple[str, ...], seeds: int, tokens: float) -> list[Run]:
    runs = [Run(variant, changes, seed, tokens) for seed in range(seeds)]
    return [run for run in runs if is_finished(run.folder)]


def _spread(values: Iterable[float], sign: bool = False) -> str:
    """Return the mean and the half-width of its 95 % interval over seeds."""
    from headstart.evaluation.significance import interval

    if not (values := list(values)):
        return "–"
    summary = interval(values)
    mean = f"{summary.mean:+.3f}" if sign else f"{summary.mean:.3f}"
    return mean if summary.high is None else f"{mean} ± {summary.high - summary.mean:.3f}"


def _part(paired: list[float], doubling: list[float]) -> float | None:
    """Return the fraction of the first variant's tokens needed for its loss, from the gain of doubling its tokens."""
    return 2 ** -(sum(paired) / sum(doubling)) if paired and sum(doubling) < 0 else None


def _price(runs: list[Run], first: list[Run]) -> float | None:
    """Return the ratio of processor times to the first variant, each the minimum over seeds."""
    ours, theirs = ([run.seconds for run in side if run.seconds] for side in (runs, first))
    return min(ours) / min(theirs) if ours and theirs else None


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--tokens", type=float, help="tokens of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs, one thread each")
    parser.add_argument("--only-table", action="store_true", help="write the page from the finished runs")
    options = parser.parse_args()
    study = STUDIES[options.study]
    study = study._replace(tokens=options.tokens or study.tokens)
    first = next(iter(study.variants))
    if not options.only_table:
        asked = [(name, changes, study.tokens) for name, changes in study.variants.items()]
        asked.append((first, study.variants[first], study.besides * study.tokens))
        runs = [
            Run(name, changes, seed, amount)
            for seed in range(options.seeds)
            # A new order for each seed: runs that share the machine differ from seed to seed.
            for name, changes, amount in Random(seed).sample(asked, len(asked))
        ]
        # Short runs first, so that encoding the corpus (one run at a time) and compiling (all variants) are not timed.
        run_all([Run(first, study.variants[first], seed, 8e4).command for seed in range(options.seeds)], 1)
        run_all([Run(name, changes, 0, 8e4).command for name, changes in study.variants.items()], options.jobs)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(Run.do, runs))
    write(PAGE, {options.study: table(study, options.seeds)})


if __name__ == "__main__":
    main()
