"""Several processes train like one: the same batches, losses, gradients and weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headstart.core import artifact
from headstart.core.errors import RecipeError
from headstart.training.batches import StepBatches, global_batch
from headstart.training.world import World

# A process that has imported torch forks the ranks of each request, so that they start at once. Each rank writes its
# results; rank 0 also writes metrics.jsonl.
_NURSERY = """
import json, os, pathlib, runpy, signal, struct, sys, traceback
import torch
from torch.distributed import TCPStore
from safetensors.torch import save_file
from headstart.core.data import ParameterGroup
from headstart.training import interruption
from headstart.training.trackers.metrics_file import MetricsFileCallback
from headstart.training.world import joined
interruption._POLL_SECONDS = 0.01
torch.set_num_threads(1)
toy = runpy.run_path(sys.argv[1])

def train(folder, given):
    seen = []
    size, dropout, threads = given.pop("size", 20), given.pop("dropout", 0.0), given.pop("threads", False)
    starts, announce = given.pop("starts", 0.0), given.pop("announce", 0)

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
        if given.get("optim") == "muon":
            learner.module.layers = torch.nn.ModuleList([learner.module.hidden])
        announcer = toy["At"](announce, lambda: os.write(1, b"announced\\n"))
        callbacks = [MetricsFileCallback(), announcer] if world.is_main else []
        loop = toy["loop_of"](folder, learner, *callbacks, world=world, **given)
        loop.restore()
        result = {"stopped": False, "resumed": loop.progress.step}
        try:
            result["validation"] = loop.run().validation
        except KeyboardInterrupt as stopped:
            result["stopped"] = str(stopped)
        progress = loop.progress
        state = {name: value.clone().contiguous() for name, value in learner.module.state_dict().items()}
        save_file(state, folder / f"weights-{world.rank}.safetensors")
        result |= {"seen": seen, "step": progress.step, "seconds": progress.seconds, "tokens": progress.tokens}
        (folder / f"result-{world.rank}.json").write_text(json.dumps(result))

def begin(rank, count, ports, folder, given):
    child = os.fork()
    if child:
        return child
    (port,) = struct.unpack("i", os.read(ports, 4))
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
    # As under torchrun, the ranks meet at a store of their parent, so that no other process can take the port. They are
    # forked before its thread runs: a fork while that thread resolves an address inherits the resolver's lock, held.
    ports, sent = os.pipe()
    children = [begin(rank, count, ports, folder, given) for rank in range(count)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(sent, struct.pack("i", store.port) * count)
    print(json.dumps(children), flush=True)
    codes = {}
    while len(codes) < count:
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child]:
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    print(json.dumps([codes[child] for child in children]), flush=True)
    del store
    os.close(ports)
    os.close(sent)
"""


@pytest.fixture(scope="module")
def ranks(toy):
    """Train the toy in several processes; returns the results and the weights of each rank."""
    command = [sys.executable, "-c", _NURSERY, str(toy.source)]
    nursery = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert nursery.stdout.readline() == "ready\n"

    def run(count: int, folder: Path, at_step: int = 0, action=None, **given):
        """`action` gets the process ids of the ranks as soon as rank 0 has logged the step."""
        folder.mkdir(parents=True, exist_ok=True)
        given["announce"] = at_step
        nursery.stdin.write(json.dumps([count, str(folder), given]) + "\n")
        nursery.stdin.flush()
        children = json.loads(nursery.stdout.readline())
        if action:
            assert nursery.stdout.readline() == "announced\n"
            action(children)
        assert json.loads(nursery.stdout.readline()) == [0] * count
        results = [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(count)]
        return results, [load_file(folder / f"weights-{rank}.safetensors") for rank in range(count)]

    yield run
    nursery.kill()
    nursery.wait()


def losses(toy, folder: Path) -> list[float]:
    return [dict(line)["loss"] for line in toy.curve(folder) if "loss" in dict(line)]


@pytest.mark.parametrize(("count", "micro"), [(2, None), (2, 1), (2, 3), (4, 1), (3, 2)])
def test_ranks_train_like_one_process(toy, tmp_path, ranks, count, micro):
    """The parts of a batch differ in predictions and, with three ranks, in samples."""
    alone = toy.Learner(dropout=0.0)
    _, expected = toy.train(tmp_path / "alone", alone, micro_batch_size=micro)
    results, weights = ranks(count, tmp_path / "ranks", micro_batch_size=micro)
    assert losses(toy, tmp_path / "ranks") == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name
        assert all(torch.equal(other[name], weights[0][name]) for other in weights), f"{name} differs between processes"
    assert all(r["tokens"] == expected.progress.tokens and r["step"] == 12 for r in results)
    assert all(r["validation"] == results[0]["validation"] for r in results)


def test_time_ends_all_ranks_at_the_same_step_and_rank_0_evaluates_with_all_threads(toy, tmp_path, ranks):
    (first, second), _ = ranks(2, tmp_path, budget="1 s", eval_count=20, save_interval_minutes=1e-3, threads=True)
    assert first["step"] == second["step"] > 1 and first["seconds"] == second["seconds"] >= 1
    assert first["validation"] == {"score": 2.0}


@pytest.mark.parametrize(("parallel", "async_save"), [("ddp", False), ("fsdp", False), ("ddp", True), ("fsdp", True)])
def test_ranks_resume_to_the_bit_with_dropout(toy, tmp_path, ranks, parallel, async_save):
    given = {
        "async_save": async_save,
        "parallel": parallel,
        "dropout": 0.3,
        "micro_batch_size": 2,
        "save_interval_minutes": 1e-9,
        "save_total_limit": 20,
    }
    ranks(2, tmp_path, **given)
    smooth, curve = ranks(2, tmp_path / "again", **given)[1], toy.curve(tmp_path)
    assert toy.curve(tmp_path / "again") == curve, "two runs of the same ranks differ"
    forget_after(tmp_path, 5)
    results, weights = ranks(2, tmp_path, **given)
    assert [r["resumed"] for r in results] == [5, 5] and toy.curve(tmp_path) == curve
    toy.assert_same(weights[0], smooth[0])


def test_groups_that_start_later_do_so_in_all_ranks(toy, tmp_path, ranks):
    _, (alone,) = ranks(1, tmp_path / "one", starts=0.5)
    _, weights = ranks(2, tmp_path / "two", starts=0.5)
    assert losses(toy, tmp_path / "two") == pytest.approx(losses(toy, tmp_path / "one"), rel=1e-5)
    for name, value in alone.items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name


HSDP = {"parallel": "hsdp", "shard_size": 2}
"""Two groups of two processes each."""


@pytest.mark.parametrize(
    ("count", "micro", "given"),
    [
        (2, None, {"parallel": "fsdp"}), (2, 2, {"parallel": "fsdp"}), (4, 1, {"parallel": "fsdp"}), (4, 1, HSDP),
        (4, 1, HSDP | {"optim": "muon"}), (2, 2, {"parallel": "fsdp", "optim": "muon"}),
    ],
)  # fmt: skip
def test_sharded_ranks_train_like_one_process(toy, tmp_path, ranks, count, micro, given):
    alone, optim = toy.Learner(dropout=0.0), given.get("optim", "adamw")
    if optim == "muon":
        alone.module.layers = torch.nn.ModuleList([alone.module.hidden])
    toy.train(tmp_path / "alone", alone, micro_batch_size=micro, optim=optim)
    results, weights = ranks(count, tmp_path / "ranks", micro_batch_size=micro, **given)
    assert losses(toy, tmp_path / "ranks") == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name
        assert all(torch.equal(other[name], weights[0][name]) for other in weights), f"{name} differs between processes"
    assert all(r["validation"] == results[0]["validation"] for r in results)


@pytest.mark.parametrize("steps", [6, pytest.param(50, marks=pytest.mark.long)])
def test_every_layout_has_the_losses_of_one_process(toy, tmp_path, ranks, steps):
    """To 1e-6 in single precision; docs/scaling.md has the differences over 50 steps (`-m long -s` prints them)."""
    given = {"budget": f"{steps} steps", "micro_batch_size": 2, "dropout": 0.3, "size": 64}
    ranks(1, tmp_path / "one", **given)
    expected = losses(toy, tmp_path / "one")
    assert len(expected) == steps
    for name, layout in {"ddp": {}, "fsdp": {"parallel": "fsdp"}, "hsdp 2×2": HSDP}.items():
        ranks(4, tmp_path / name, **given, **layout)
        found = losses(toy, tmp_path / name)
        furthest = max(abs(a - b) for a, b in zip(found, expected, strict=True))
        print(f"{name}: {furthest:.1e} over {steps} steps, from {expected[0]:.3f} to {expected[-1]:.3f}")
        assert furthest <= 1e-6


@pytest.mark.parametrize(
    "given",
    [{"reduce_dtype": "bf16"}, {"parallel": "fsdp", "reduce_dtype": "bf16"},
     {"parallel": "fsdp", "precision": "bf16", "gather_dtype": "bf16"}],
)  # fmt: skip
def test_exchanges_in_bf16_round_and_leave_weights_in_fp32(toy, tmp_path, ranks, given):
    exact = {name: value for name, value in given.items() if not name.endswith("dtype")}
    _, weights = ranks(2, tmp_path / "bf16", dropout=0.0, **given)
    ranks(2, tmp_path / "fp32", dropout=0.0, **exact)
    found, target = losses(toy, tmp_path / "bf16"), losses(toy, tmp_path / "fp32")
    assert found != target and found == pytest.approx(target, rel=0.02)
    assert all(value.dtype == torch.float32 for value in weights[0].values())
    toy.assert_same(weights[0], weights[1])


def test_weights_gathered_in_bf16_need_computation_in_bf16(toy, tmp_path):
    with pytest.raises(RecipeError, match="gather_dtype` is bf16, but the run computes in fp32"):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 2), parallel="fsdp", gather_dtype="bf16", precision="fp32")


def forget_after(folder: Path, step: int) -> None:
    """Delete the checkpoints after a step, as if the run had been killed there."""
    for path in (folder / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            shutil.rmtree(path)


def test_a_run_resumes_whole_or_sharded_in_one_process_or_several(toy, tmp_path, ranks):
    """From any layout into any other, the curve is that of one process."""
    alone = toy.Learner(dropout=0.0)
    toy.train(tmp_path / "alone", alone)
    folder, kept = tmp_path / "ranks", {"save_interval_minutes": 1e-9, "save_total_limit": 20}
    one, ddp, fsdp, fsdp4 = (1, {}), (2, {}), (2, {"parallel": "fsdp"}), (4, {"parallel": "fsdp"})
    hsdp = (4, HSDP)
    ways = [fsdp, one, hsdp, one, fsdp, hsdp, ddp, fsdp4, hsdp, fsdp4, one]
    for start, (count, layout) in enumerate(ways):
        forget_after(folder, start)
        results, weights = ranks(count, folder, **layout, **kept)
        assert [r["resumed"] for r in results] == [start] * count
    assert losses(toy, folder) == pytest.approx(losses(toy, tmp_path / "alone"), rel=1e-5)
    for name, value in toy.weights(alone).items():
        assert torch.allclose(weights[0][name], value, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(("count", "layout", "parts"), [(2, {}, 1), (2, {"parallel": "fsdp"}, 2), (4, HSDP, 4)])
def test_a_checkpoint_of_several_ranks_contains_no_pickle(tmp_path, ranks, count, layout, parts):
    """Under HSDP, the groups share the writing."""
    ranks(count, tmp_path, save_interval_minutes=1e-9, **layout)
    files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert len({path.name for path in files if path.suffix == ".safetensors"}) == parts
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        artifact.verify(checkpoint, "checkpoint")


@pytest.mark.parametrize("how", ["SIGTERM to one", "SIGINT to all", "SIGUSR1 to one", "file"])
def test_a_request_stops_all_ranks_at_the_same_step_and_they_resume_to_the_same_bits(toy, tmp_path, ranks, how):
    given = {"dropout": 0.3, "micro_batch_size": 2, "budget": "60 steps", "size": 64}
    smooth = ranks(2, tmp_path / "smooth", **given)[1]
    folder = tmp_path / "rough"

    def stop(children):
        if how == "file":
            (folder / "stop").touch()
        else:
            name, _, target = how.partition(" to ")
            for child in children[1:] if target == "one" else children:
                os.kill(child, getattr(signal, name))

    (first, second), _ = ranks(2, folder, 5, stop, **given)
    assert first["stopped"] and second["stopped"] and 4 < first["step"] == second["step"] < 60
    again, weights = ranks(2, folder, **given)
    assert [r["resumed"] for r in again] == [first["step"]] * 2 and not (folder / "stop").exists()
    assert toy.curve(folder) == toy.curve(tmp_path / "smooth")
    toy.assert_same(weights[0], smooth[0])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["plain", "lengths"])
def test_the_parts_of_all_ranks_make_up_the_global_batch(toy, size, kind):
    learner = toy.Learner(lengths=[index % 5 for index in range(20)] if kind == "lengths" else None)
    seen: list = []
    learner.batch = lambda samples: seen.extend(samples) or {}
    for step in range(6):
        seen.clear()
        for rank in range(size):
            StepBatches(learner, 8, 3, 5, rank=rank, size=size)[step]
        assert sorted(seen) == sorted(global_batch(learner, step, 8, 5))


@pytest.mark.parametrize(("size", "micro"), [(2, 4), (2, 2), (2, 1), (4, 2), (4, 1)])
def test_processes_read_the_micro_batches_of_one_process(toy, size, micro):
    learner = toy.Learner(lengths=[index % 5 for index in range(20)])
    learner.batch = lambda samples: samples
    alone = StepBatches(learner, 8, micro, 5)[3]
    parts = [StepBatches(learner, 8, micro, 5, rank=rank, size=size)[3] for rank in range(size)]
    assert [part[i] for i in range(len(parts[0])) for part in parts] == alone


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_two_ranks_compute_what_one_process_accumulates_to_the_bit(toy, tmp_path, ranks, dropout):
    _, (alone,) = ranks(1, tmp_path / "one", dropout=dropout, micro_batch_size=4)
    _, weights = ranks(2, tmp_path / "two", dropout=dropout, micro_batch_size=None)
    assert losses(toy, tmp_path / "two") == losses(toy, tmp_path / "one")
    assert all(torch.equal(weights[0][name], value) for name, value in alone.items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"parallel": "fsdp"}, "reads 8 samples, which 3 processes cannot share evenly"),
        ({"parallel": "hsdp", "shard_size": 2}, "3 processes cannot be divided into groups of 2"),
    ],
)
def test_processes_that_cannot_share_evenly_are_refused(toy, tmp_path, given, message):
    with pytest.raises(RecipeError, match=message):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 3), **given)


def test_a_batch_smaller_than_the_number_of_processes_is_refused(toy, tmp_path):
    with pytest.raises(RecipeError, match="reads 8 samples, but there are 9 processes"):
        toy.loop(tmp_path, toy.Learner(), world=World(0, 9))


_COLLECTIVES = """
import json, sys
from headstart.training.world import joined
with joined() as world:
    found = {
        "sum": world.all_reduce_sum(world.rank + 1, 0.5),
        "broadcast": world.broadcast({"from": world.rank, "text": "é" * 300}),
        "gather": world.all_gather({"rank": world.rank, "names": ["x"] * 10 ** world.rank}),
    }
    with world.main_first():
        pass
    json.dump(found, open(sys.argv[1] + f"/{world.rank}.json", "w"))
"""


def test_collectives_exchange_json(tmp_path):
    """Messages of different lengths; no value is pickled."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0", str(tmp_path / "code.py"), str(tmp_path),
    ]  # fmt: skip
    (tmp_path / "code.py").write_text(_COLLECTIVES)
    subprocess.run(command, check=True, timeout=240, env=os.environ | {"OMP_NUM_THREADS": "1"})
    for rank in range(3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["sum"] == [6.0, 1.5] and found["broadcast"] == {"from": 0, "text": "é" * 300}
        assert [(v["rank"], len(v["names"])) for v in found["gather"]] == [(0, 1), (1, 10), (2, 100)]


def test_a_single_process_exchanges_nothing():
    world, value = World(), {"a": object()}
    assert world.is_main and world.broadcast(value) is value and world.all_gather(value) == [value]
    assert world.all_reduce_sum(1.0, 2.0) == [1.0, 2.0]
