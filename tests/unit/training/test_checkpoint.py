"""What is saved is restored to the bit, or passed over and named."""

from __future__ import annotations

import json

import pytest
import torch

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.training import state
from headstart.training.checkpoint import Progress


def stepped(toy, tmp_path, steps: int = 3, **given):
    """Return a loop that has made some steps by hand."""
    loop = toy.loop(tmp_path, toy.Learner(), **given)
    loop._start_clock()
    advance(loop, steps)
    return loop


def advance(loop, steps: int) -> None:
    stream = loop._batches()
    for _ in range(steps):
        loop._step(next(stream))


def adam(loop) -> dict[str, dict[str, torch.Tensor]]:
    names = {id(p): name for name, p in loop.learner.module.named_parameters()}
    return {names[id(p)]: {k: v.clone() for k, v in state.items()} for p, state in loop.optimizer.state.items()}


def saved_steps(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_weights_optimiser_and_progress_come_back_to_the_bit(toy, tmp_path):
    before = stepped(toy, tmp_path)
    before.progress.recent = [1.25, 0.1 + 0.2]
    before.save()
    after = toy.loop(tmp_path, toy.Learner())
    with torch.no_grad():
        for parameter in after.learner.module.parameters():
            parameter.add_(1.0)
    found = after.restore()
    toy.assert_same(toy.weights(before.learner), toy.weights(after.learner))
    one, other = adam(before), adam(after)
    assert one.keys() == other.keys()
    for name in one:
        toy.assert_same(one[name], other[name])
    assert after.progress == before.progress and found.resumed_from == 3 and found.passed_over == []
    settings = [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in before.optimizer.param_groups]
    assert settings == [{k: v for k, v in g.items() if k not in ("params", "lr")} for g in after.optimizer.param_groups]


def test_tied_weights_are_saved_once_and_stay_tied(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    stored = state.collect(loop.learner.module, loop.optimizer, {})
    assert "model.embedding.weight" in stored and "model.output.weight" not in stored
    loop.save()
    again = toy.loop(tmp_path, toy.Learner())
    again.restore()
    module = again.learner.module
    assert module.output.weight is module.embedding.weight
    assert torch.equal(module.output.weight, loop.learner.module.embedding.weight)


def test_a_parameter_that_never_moved_has_no_state_before_or_after(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    assert "idle" not in adam(loop), "the test needs a parameter without gradient"
    loop.save()
    again = toy.loop(tmp_path, toy.Learner())
    again.restore()
    assert "idle" not in adam(again)


def test_saving_before_the_first_step_leaves_no_trace(toy, tmp_path):
    disturbed = stepped(toy, tmp_path / "a", steps=0)
    disturbed.save()
    again = toy.loop(tmp_path / "a", toy.Learner())
    assert again.restore().resumed_from == 0
    again._start_clock()
    smooth = stepped(toy, tmp_path / "b", steps=2)
    for loop in (disturbed, again):
        advance(loop, 2)
        toy.assert_same(toy.weights(loop.learner), toy.weights(smooth.learner))


def test_nothing_saved_is_no_error(toy, tmp_path):
    assert toy.loop(tmp_path, toy.Learner()).restore().resumed_from == 0


@pytest.mark.parametrize("harm", ["bit", "truncation", "no progress", "no manifest", "bad manifest", "empty folder"])
def test_a_torn_checkpoint_is_named_and_the_one_before_it_taken(toy, tmp_path, harm, capsys):
    loop = stepped(toy, tmp_path)
    loop.save()
    weights = toy.weights(loop.learner)
    advance(loop, 2)
    newest = loop.save()
    tensors = next(newest.glob("*.safetensors"))
    if harm == "bit":
        content = bytearray(tensors.read_bytes())
        content[-9] ^= 16
        tensors.write_bytes(content)
    elif harm == "truncation":
        tensors.write_bytes(tensors.read_bytes()[:-100])
    elif harm == "no progress":
        (newest / "progress.json").unlink()
    elif harm == "no manifest":
        (newest / artifact.MANIFEST).unlink()
    elif harm == "bad manifest":
        (newest / artifact.MANIFEST).write_text('{"kind": "checkpoint", "files": {"progress.json": {}}}')
    else:
        for path in newest.iterdir():
            path.unlink()
    again = toy.loop(tmp_path, toy.Learner())
    found = again.restore()
    assert found.resumed_from == 3 and len(found.passed_over) == 1 and newest.name in found.passed_over[0]
    assert f"a checkpoint was passed over: {found.passed_over[0]}\n" in capsys.readouterr().err
    toy.assert_same(toy.weights(again.learner), weights)


def test_a_torn_checkpoint_never_outlives_a_good_one(toy, tmp_path):
    """With one checkpoint kept, the torn one of a later step must not be the one."""
    loop = stepped(toy, tmp_path, save_total_limit=1)
    loop.save()
    folder = loop.checkpoints
    (folder / "step-000000009").mkdir()
    again = toy.loop(tmp_path, toy.Learner(), save_total_limit=1)
    again.restore()
    again._start_clock()
    advance(again, 1)
    again.save()
    assert saved_steps(folder) == ["step-000000004"]
    assert toy.loop(tmp_path, toy.Learner()).restore().resumed_from == 4


def test_if_none_verifies_it_says_so_and_does_not_start_anew(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    (loop.save() / "progress.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"none of the checkpoints.*Delete that folder"):
        toy.loop(tmp_path, toy.Learner()).restore()


def test_another_recipe_s_checkpoint_is_refused(toy, tmp_path):
    stepped(toy, tmp_path).save()
    with pytest.raises(ArtifactError, match="another recipe"):
        toy.loop(tmp_path, toy.Learner(), fingerprint="other").restore()


def test_a_checkpoint_of_another_network_is_refused(toy, tmp_path):
    stepped(toy, tmp_path).save()
    learner = toy.Learner()
    learner.module.more = torch.nn.Linear(3, 3)
    with pytest.raises(ArtifactError, match=r"lacks model\.more"):
        toy.loop(tmp_path, learner).restore()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(toy, tmp_path, keep):
    loop = stepped(toy, tmp_path, steps=0, save_total_limit=keep)
    for _ in range(4):
        advance(loop, 1)
        loop.save()
    assert saved_steps(loop.checkpoints) == [f"step-{n:09d}" for n in range(5 - keep, 5)]


def test_saving_the_same_step_twice_is_fine(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    loop.save()
    loop.save()
    assert saved_steps(loop.checkpoints) == ["step-000000003"]
    artifact.verify(loop.checkpoints / "step-000000003", "checkpoint")


def test_no_file_can_run_code_when_loaded(toy, tmp_path):
    """Safetensors and JSON only: no pickle opcode, no zip archive."""
    folder = stepped(toy, tmp_path).save()
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    for path in folder.glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"))
    for path in folder.glob("*.safetensors"):
        head = path.read_bytes()
        size = int.from_bytes(head[:8], "little")
        assert set(json.loads(head[8 : 8 + size])) - {"__metadata__"}


def test_the_best_weights_travel_too(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    best = {"hidden.weight": torch.randn(16, 16), "norm.bias": torch.randn(16)}
    loop.best = best
    loop.save()
    again = toy.loop(tmp_path, toy.Learner())
    again.restore()
    toy.assert_same(again.best, best)


def test_progress_of_an_older_version_is_read():
    assert Progress(**{"step": 3, "tokens": 9}).recent == []
