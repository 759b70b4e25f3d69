"""A checkpoint is restored to the bit, or skipped and reported."""

from __future__ import annotations

import json

import pytest
import torch

from headstart.core import artifact
from headstart.core.errors import ArtifactError
from headstart.training import state
from headstart.training.checkpoint import Progress


def stepped(toy, tmp_path, steps: int = 3, **given):
    """Return a loop that has made some steps."""
    loop = toy.loop(tmp_path, toy.Learner(), toy.StopAfter(steps), **given)
    loop.run()
    return loop


def advance(loop, steps: int) -> None:
    loop.callbacks[-1].steps = steps
    loop.run()


def adam(loop) -> dict[str, dict[str, torch.Tensor]]:
    names = {id(p): name for name, p in loop.learner.module.named_parameters()}
    return {names[id(p)]: {k: v.clone() for k, v in state.items()} for p, state in loop.optimizer.state.items()}


def saved_steps(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_weights_optimizer_and_progress_are_restored_to_the_bit(toy, tmp_path):
    before = stepped(toy, tmp_path)
    before.progress.recent = [1.25, 0.1 + 0.2]
    before.save()
    after = toy.loop(tmp_path, toy.Learner())
    with torch.no_grad():
        for parameter in after.learner.module.parameters():
            parameter.add_(1.0)
    skipped = after.restore()
    toy.assert_same(toy.weights(before.learner), toy.weights(after.learner))
    one, other = adam(before), adam(after)
    assert one.keys() == other.keys()
    for name in one:
        toy.assert_same(one[name], other[name])
    assert after.progress == before.progress and after.progress.step == 3 and skipped == []
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


def test_a_parameter_without_gradient_has_no_state_before_or_after(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    assert "idle" not in adam(loop), "the test needs a parameter without gradient"
    loop.save()
    again = toy.loop(tmp_path, toy.Learner())
    again.restore()
    assert "idle" not in adam(again)


def test_saving_before_the_first_step_changes_nothing(toy, tmp_path):
    disturbed = stepped(toy, tmp_path / "a", steps=0)
    disturbed.save()
    again = toy.loop(tmp_path / "a", toy.Learner(), toy.StopAfter(2))
    assert again.restore() == [] and again.progress.step == 0
    smooth = stepped(toy, tmp_path / "b", steps=2)
    for loop in (disturbed, again):
        advance(loop, 2)
        toy.assert_same(toy.weights(loop.learner), toy.weights(smooth.learner))


def test_a_run_without_checkpoints_starts_at_step_zero(toy, tmp_path):
    loop = toy.loop(tmp_path, toy.Learner())
    assert loop.restore() == [] and loop.progress.step == 0


@pytest.mark.parametrize("harm", ["bit", "truncation", "no progress", "no manifest", "bad manifest", "empty folder"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_restored(toy, tmp_path, harm, caplog):
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
    (skipped,) = again.restore()
    assert again.progress.step == 3 and newest.name in skipped
    assert f"skipped a damaged checkpoint: {skipped}" in caplog.messages
    toy.assert_same(toy.weights(again.learner), weights)


def test_a_damaged_checkpoint_is_removed_before_a_good_one(toy, tmp_path):
    """With one checkpoint kept, it must not be the damaged one of a later step."""
    loop = stepped(toy, tmp_path, save_total_limit=1)
    loop.save()
    folder = loop.checkpoints.folder
    (folder / "step-000000009").mkdir()
    again = toy.loop(tmp_path, toy.Learner(), toy.StopAfter(1), save_total_limit=1)
    again.restore()
    again.run()
    again.save()
    assert saved_steps(folder) == ["step-000000004"]
    last = toy.loop(tmp_path, toy.Learner())
    assert last.restore() == [] and last.progress.step == 4


def test_if_no_checkpoint_verifies_the_run_does_not_start_again(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    (loop.save() / "progress.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"none of the checkpoints.*Delete that folder"):
        toy.loop(tmp_path, toy.Learner()).restore()


def test_a_checkpoint_of_another_recipe_is_refused(toy, tmp_path):
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
    assert saved_steps(loop.checkpoints.folder) == [f"step-{n:09d}" for n in range(5 - keep, 5)]


def test_a_step_can_be_saved_twice(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    loop.save()
    loop.save()
    assert saved_steps(loop.checkpoints.folder) == ["step-000000003"]
    artifact.verify(loop.checkpoints.folder / "step-000000003", "checkpoint")


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


def test_the_best_weights_are_saved_too(toy, tmp_path):
    loop = stepped(toy, tmp_path)
    best = {"hidden.weight": torch.randn(16, 16), "norm.bias": torch.randn(16)}
    loop.best = best
    loop.save()
    again = toy.loop(tmp_path, toy.Learner())
    again.restore()
    toy.assert_same(again.best, best)


def test_progress_of_an_older_version_is_read():
    assert Progress(**{"step": 3, "tokens": 9}).recent == []
