"""Several processes train as one does: the same batches, losses, gradients and weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headstart.core import artifact
from headstart.core.errors import RecipeError
from headstart.training.batches import _Steps, global_batch
from headstart.training.progress import read_curve
from headstart.training.world import World

# A process that has loaded torch forks the ranks of each request, so that they start at once. Each writes what it
# ended with; the leader also the curve.
_NURSERY = """
import json, os, pathlib, runpy, signal, sys, traceback
import torch
from torch.distributed import TCPStore
from safetensors.torch import save_file
from headstart.core.contracts import ParameterGroup
from headstart.training import interruption
from headstart.training.progress import JsonLines
from headstart.training.world import joined
interruption._LOOKED_FOR_EVERY = 0.01
torch.set_num_threads(1)
toy = runpy.run_path(sys.argv[1])

def train(folder, given):
    seen = []
    size, dropout, threads = given.pop("size", 20), given.pop("dropout", 0.0), given.pop("threads", False)
    starts = given.pop("starts", 0.0)

    class Learner(toy["ToyLearner"]):
        def batch(self, samples):
            seen.extend([sample.epoch, sample.index] for sample in samples)
            return super().batch(samples)

        def validate(self):
            return {"score": float(torch.get_num_threads())} if threads else super().validate()

        def parameter_groups(self):
            (whole,) = super().parameter_groups()
            late = [name for name in whole.names if name.startswith("hidden")]
            rest = tuple(name for name in whole.names if name not in late)
            return [ParameterGroup(rest), ParameterGroup(tuple(late), starts=starts)]

    with joined() as world:
        learner = Learner(size=size, dropout=dropout)
        loop = toy["loop_of"](folder, learner, world=world, **given)
        start = loop.restore()
        curve = JsonLines(folder / "metrics.jsonl", start.resumed_from) if world.leads else None
        told = {"stopped": False}
        try:
            told["validation"] = loop.run([curve] if curve else []).validation
        except KeyboardInterrupt as stopped:
            told["stopped"] = str(stopped)
        progress = loop.progress
        state = {name: value.clone().contiguous() for name, value in learner.module.state_dict().items()}
        save_file(state, folder / f"weights-{world.rank}.safetensors")
        told |= {"seen": seen, "step": progress.step, "seconds": progress.seconds, "tokens": progress.tokens,
                 "resumed": start.resumed_from}
        (folder / f"told-{world.rank}.json").write_text(json.dumps(told))

def begin(rank, count, port, folder, given):
    child = os.fork()
    if child:
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
                   "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}
    try:
        train(pathlib.Path(folder), given)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)

print("ready", flush=True)
for line in sys.stdin:
    count, folder, given = json.loads(line)
    # As under torchrun, the ranks meet at a store of their parent's: a port is never free and then taken.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = [begin(rank, count, store.port, folder, given) for rank in range(count)]
    print(json.dumps(children), flush=True)
    codes = {}
    while len(codes) < count:
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child]:
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    print(json.dumps([codes[child] for child in children]), flush=True)
"""


@pytest.fixture(scope="module")
def ranks(toy):
    """Train the toy in some processes; returns what each of them tells and ended with."""
    command = [sys.executable, "-c", _NURSERY, str(toy.source)]
    nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert nursery.stdout.readline() == "ready\n"

    def run(count: int, folder: Path, on_start=None, **given):
        folder.mkdir(parents=True, exist_ok=True)
        nursery.stdin.write(json.dumps([count, str(folder), given]) + "\n")
        nursery.stdin.flush()
        children = json.loads(nursery.stdout.readline())
        if on_start:
            on_start(children)
        assert json.loads(nursery.stdout.readline()) == [0] * count
        told = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(count)]
        return told, [load_file(folder / f"weights-{rank}.safetensors") for rank in range(count)]

    yield run
    nursery.kill()
    nursery.wait()


def losses(toy, folder: Path) -> list[float]:
    return [dict(line)["loss"] for line in toy.losses(folder) if "loss" in dict(line)]


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


def test_time_ends_all_ranks_at_the_same_step_and_the_leader_measures_with_all_threads(toy, tmp_path, ranks):
    told, _ = ranks(2, tmp_path, budget="1 s", eval_count=20, save_interval_minutes=1e-3, threads=True)
    assert told[0]["step"] == told[1]["step"] > 1 and told[0]["seconds"] == told[1]["seconds"] >= 1
    assert told[0]["validation"] == {"score": 2.0}


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_resume_to_the_bit_with_dropout(toy, tmp_path, ranks, parallel):
    given = {
        "parallel": parallel,
        "dropout": 0.3,
        "micro_batch_size": 2,
        "save_interval_minutes": 1e-9,
        "save_total_limit": 20,
    }
    ranks(2, tmp_path, **given)
    smooth, curve = ranks(2, tmp_path / "again", **given)[1], toy.losses(tmp_path)
    assert toy.losses(tmp_path / "again") == curve, "two runs of the same ranks differ"
    forget_after(tmp_path, 5)
    told, weights = ranks(2, tmp_path, **given)
    assert [one["resumed"] for one in told] == [5, 5] and toy.losses(tmp_path) == curve
    toy.assert_same(weights[0], smooth[0])


def test_groups_that_start_later_do_so_in_all_ranks(toy, tmp_path, ranks):
    _, (alone,) = ranks(1, tmp_path / "one", starts=0.5)
    _, weights = ranks(2, tmp_path / "two", starts=0.5)
    assert losses(toy, tmp_path / "two") == pytest.approx(losses(toy, tmp_path / "one"), rel=1e-5)
    for name, value in alone.items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(("count", "micro"), [(2, None), (2, 2), (4, 1)])
def test_sharded_ranks_train_as_one_process_does(toy, tmp_path, ranks, count, micro):
    alone = toy.Learner(dropout=0.0)
    toy.train(tmp_path / "alone", alone, micro_batch_size=micro)
    told, weights = ranks(count, tmp_path / "ranks", micro_batch_size=micro, parallel="fsdp")
    assert losses(toy, tmp_path / "ranks") == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name
        assert all(torch.equal(one[name], weights[0][name]) for one in weights), f"{name} differs between processes"
    assert all(one["validation"] == told[0]["validation"] for one in told)


def forget_after(folder: Path, step: int) -> None:
    """Take the checkpoints after a step away, as if the run had been killed there."""
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def test_a_run_goes_on_whole_or_sharded_in_one_process_or_several(toy, tmp_path, ranks):
    """Two shard it, one goes on, two hold it whole, four shard it, one ends it: the curve is that of one process."""
    alone = toy.Learner(dropout=0.0)
    toy.train(tmp_path / "alone", alone)
    folder, kept = tmp_path / "ranks", {"save_interval_minutes": 1e-9, "save_total_limit": 20}
    ways = [(2, "fsdp", 0), (1, "ddp", 3), (2, "fsdp", 5), (2, "ddp", 7), (4, "fsdp", 9), (1, "ddp", 11)]
    for count, parallel, start in ways:
        forget_after(folder, start)
        told, weights = ranks(count, folder, parallel=parallel, **kept)
        assert [one["resumed"] for one in told] == [start] * count
    assert losses(toy, folder) == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_checkpoint_holds_no_pickle_whoever_wrote_it(tmp_path, ranks, parallel):
    ranks(2, tmp_path, parallel=parallel, save_interval_minutes=1e-9)
    files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert len({path.name for path in files if path.suffix == ".safetensors"}) == (2 if parallel == "fsdp" else 1)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        artifact.verify(checkpoint, "checkpoint")


@pytest.mark.parametrize("how", ["SIGTERM to one", "SIGINT to all", "SIGUSR1 to one", "file"])
def test_asked_to_stop_all_ranks_leave_at_the_same_step_and_go_on_to_the_same_bits(toy, tmp_path, ranks, how):
    given = {"dropout": 0.3, "micro_batch_size": 2, "budget": "60 steps", "size": 64}
    smooth = ranks(2, tmp_path / "smooth", **given)[1]
    folder = tmp_path / "rough"

    def stop(children):
        wait_for(lambda: len(read_curve(folder / "metrics.jsonl")) > 4)
        if how == "file":
            (folder / "stop").touch()
        else:
            word, _, whom = how.partition(" to ")
            for child in children[1:] if whom == "one" else children:
                os.kill(child, getattr(signal, word))

    told, _ = ranks(2, folder, stop, **given)
    assert all(one["stopped"] for one in told) and 4 < told[0]["step"] == told[1]["step"] < 60
    again, weights = ranks(2, folder, **given)
    assert [one["resumed"] for one in again] == [told[0]["step"]] * 2 and not (folder / "stop").exists()
    assert toy.losses(folder) == toy.losses(tmp_path / "smooth")
    toy.assert_same(weights[0], smooth[0])


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


@pytest.mark.parametrize(
    ("given", "found"),
    [({}, "reads 8 samples, and 3 processes shard"), ({"optim": "muon"}, "optim is muon and training.parallel fsdp")],
)
def test_what_cannot_be_sharded_is_refused(toy, tmp_path, given, found):
    with pytest.raises(RecipeError, match=found):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 2 if given else 3), parallel="fsdp", **given)


def test_a_batch_too_small_for_its_processes_is_refused(toy, tmp_path):
    with pytest.raises(RecipeError, match="reads 8 samples, and 9 processes share them"):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 9))
