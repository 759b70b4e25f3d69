"""Several processes train as one does: the same batches, losses, gradients and weights, by real torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headstart.core.errors import RecipeError
from headstart.training.batches import _Steps, global_batch
from headstart.training.world import World

# Each process writes what it ended with; the leader also the curve.
_RANK = """
import json, pathlib, runpy, sys
import torch
from safetensors.torch import save_file
from headstart.core.contracts import ParameterGroup
from headstart.training.progress import JsonLines
from headstart.training.world import joined
torch.set_num_threads(1)
toy = runpy.run_path(sys.argv[1])
folder, given = pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
size, dropout, seen = given.pop("size", 20), given.pop("dropout", 0.0), []

class Learner(toy["ToyLearner"]):
    def batch(self, samples):
        seen.extend([sample.epoch, sample.index] for sample in samples)
        return super().batch(samples)

    def validate(self):
        return {"score": float(torch.get_num_threads())} if given_threads else super().validate()

given_threads = given.pop("threads", False)
with joined() as world:
    learner = Learner(size=size, dropout=dropout)
    loop = toy["loop_of"](folder, learner, world=world, **given)
    start = loop.restore()
    curve = JsonLines(folder / "metrics.jsonl", start.resumed_from) if world.leads else None
    outcome = loop.run([curve] if curve else [])
    state = {name: value.clone().contiguous() for name, value in learner.module.state_dict().items()}
    save_file(state, folder / f"weights-{world.rank}.safetensors")
    told = {"seen": seen, "step": outcome.progress.step, "seconds": outcome.progress.seconds,
            "tokens": outcome.progress.tokens, "validation": outcome.validation, "resumed": start.resumed_from}
    (folder / f"told-{world.rank}.json").write_text(json.dumps(told))
"""


@pytest.fixture(scope="session")
def ranks(toy, tmp_path_factory):
    """Train the toy in some processes; returns what each of them tells and ended with."""
    script = tmp_path_factory.mktemp("ranks") / "rank.py"
    script.write_text(_RANK)

    def run(count: int, folder: Path, **given):
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        arguments = [str(script), str(toy.source), str(folder), json.dumps(given)]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(count)]
        return told, [load_file(folder / f"weights-{rank}.safetensors") for rank in range(count)]

    return run


def losses(toy, folder: Path) -> list[float]:
    return [dict(line)["loss"] for line in toy.losses(folder) if "loss" in dict(line)]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "micro"), [(2, None), (2, 1), (2, 3), (4, 1), (3, 2)])
def test_ranks_train_as_one_process_does(toy, tmp_path, ranks, count, micro):
    """Shares of a batch hold different numbers of predictions and, of three, of samples."""
    alone = toy.Learner(dropout=0.0)
    _, expected = toy.train(tmp_path / "alone", alone, micro_batch_size=micro)
    told, weights = ranks(count, tmp_path / "ranks", micro_batch_size=micro)
    assert losses(toy, tmp_path / "ranks") == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name
        assert all(torch.equal(one[name], weights[0][name]) for one in weights), f"{name} differs between processes"
    assert all(one["tokens"] == expected.progress.tokens and one["step"] == 12 for one in told)
    assert all(one["validation"] == told[0]["validation"] for one in told)


@pytest.mark.slow
def test_time_ends_all_ranks_at_the_same_step_and_the_leader_measures_with_all_threads(toy, tmp_path, ranks):
    told, _ = ranks(2, tmp_path, budget="0.5 s", evaluations=50, save_minutes=1e-3, threads=True)
    assert told[0]["step"] == told[1]["step"] > 3 and told[0]["seconds"] == told[1]["seconds"] >= 0.5
    assert told[0]["validation"] == {"score": 2.0}


@pytest.mark.slow
def test_ranks_resume_to_the_bit_with_dropout(toy, tmp_path, ranks):
    given = {"dropout": 0.3, "micro_batch_size": 2, "save_minutes": 1e-9, "save_total_limit": 20}
    ranks(2, tmp_path, **given)
    smooth, curve = ranks(2, tmp_path / "again", **given)[1], toy.losses(tmp_path)
    assert toy.losses(tmp_path / "again") == curve, "two runs of the same ranks differ"
    for step in range(6, 12):
        for path in (tmp_path / "checkpoints" / f"step-{step:09d}").iterdir():
            path.unlink()
    told, weights = ranks(2, tmp_path, **given)
    assert [one["resumed"] for one in told] == [5, 5] and toy.losses(tmp_path) == curve
    toy.assert_same(weights[0], smooth[0])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["plain", "lengths"])
def test_shares_make_up_the_global_batch(toy, size, kind):
    learner = toy.Learner(lengths=[index % 5 for index in range(20)] if kind == "lengths" else None)
    seen: list = []
    learner.batch = lambda samples: seen.extend(samples) or {}
    for step in range(6):
        seen.clear()
        for rank in range(size):
            _Steps(learner, 8, 3, 5, rank, size)[step]
        expected = global_batch(learner, step, 8, 5)
        assert sorted(seen) == sorted(expected) and (size > 1 or seen == expected)


def test_a_batch_too_small_for_its_processes_is_refused(toy, tmp_path):
    with pytest.raises(RecipeError, match="reads 8 samples, and 9 processes share them"):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 9))
