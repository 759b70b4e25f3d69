"""The contract of objectives, for every objective with every backbone that it can train."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
import transformers
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from headstart.core.contracts import Backbone, Objective
from headstart.core.data import Sample


def predicted(batch, seq_length):
    """Return the predicted positions as (rows, columns), or None if the batch does not contain them."""
    if "positions" in batch:
        rows, slots = torch.nonzero(batch["weights"] > 0, as_tuple=True)
        return rows, batch["positions"][rows, slots]
    if "labels" in batch and batch["labels"].shape[1:] == (seq_length,):
        return torch.nonzero(batch["labels"] != -100, as_tuple=True)
    return None


def special_tokens(ids, vocabulary):
    """Return the special tokens of each row in order, without masks and padding."""
    kept = vocabulary.special[ids] & ~np.isin(ids, (vocabulary.mask, vocabulary.pad))
    return [row[keep].tolist() for row, keep in zip(ids, kept, strict=True)]


def views(batch):
    """Return a batch as (rows, tensors): the whole batch, or for a mixture the rows and tensors of each member."""
    if "member" not in batch:
        return [(slice(None), batch)]
    members = batch["member"].tolist()
    rows = {index: [row for row, member in enumerate(members) if member == index] for index in set(members)}
    return [
        (
            rows[index],
            {n.removeprefix(f"{index}/"): t[rows[index]] for n, t in batch.items() if n.startswith(f"{index}/")},
        )
        for index in rows
    ]


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_implements_the_protocol(pairing):
    assert isinstance(pairing.objective, Objective)
    assert isinstance(pairing.backbone, Backbone)


def test_batch_depends_only_on_the_samples(pairing):
    whole = pairing.batch()
    assert equal(whole, pairing.batch()), "same samples twice"
    order = [5, 0, 7, 2]
    assert equal({name: tensor[order] for name, tensor in whole.items()}, pairing.batch(order)), "another order"
    for row in range(len(pairing.rows.ids)):
        alone = pairing.batch([row])
        assert equal({name: tensor[row : row + 1] for name, tensor in whole.items()}, alone), "another grouping"


def test_does_not_change_rows_or_global_generators(pairing):
    before = pairing.rows.ids.copy()
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    pairing.objective.corrupt(pairing.rows, pairing.vocabulary, 0)
    assert (pairing.rows.ids == before).all()
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])


def test_noise_depends_on_seed_and_epoch(pairing):
    batch = pairing.batch()
    pairs = [(view["input_ids"].numpy(), pairing.rows.ids[rows]) for rows, view in views(batch)]
    shown = all(np.array_equal(inputs, ids[:, : inputs.shape[1]]) for inputs, ids in pairs)
    if shown and equal(batch, pairing.batch(seed=1)):
        assert equal(batch, pairing.batch(epoch=1)), "rows are unchanged, and the batch has no randomness"
    else:
        assert not equal(batch, pairing.batch(seed=1))
        assert not equal(batch, pairing.batch(epoch=1))


def test_special_tokens_are_neither_corrupted_nor_predicted(pairing):
    special = torch.from_numpy(pairing.vocabulary.special[pairing.rows.ids])
    # A decoder must learn to end a text.
    ends = torch.from_numpy(pairing.rows.ids == pairing.vocabulary.sep) & ("decoder" in pairing.backbone.config.family)
    for seed in range(20):
        for rows, batch in views(pairing.batch(seed=seed)):
            shown, original = batch["input_ids"].numpy(), pairing.rows.ids[rows]
            if "lengths" in batch:  # the row is split: its beginning is the input, its end the target
                shown = np.hstack([shown, batch["labels"].numpy()])
            elif "attention_mask" in batch and batch["labels"].shape[1] > original.shape[1]:
                # A decoder reads the target after the input: only the input is compared.
                starts = (batch["weights"] > 0).long().argmax(1).numpy()
                shown = np.where(np.arange(shown.shape[1]) < starts[:, None], shown, pairing.vocabulary.pad)
            if "attention_mask" in batch:
                kept = [special_tokens(ids, pairing.vocabulary) for ids in (shown, original)]
                assert kept[0] == kept[1], "shorter rows keep their order"
            elif shown.shape == original.shape:
                assert (shown == original)[special[rows]].all()
            where = predicted(batch, original.shape[1])
            if where is not None:
                assert len(where[0])
                if pairing.rows.second_start is None:
                    assert not (special & ~ends)[rows][where].any()
                else:  # segments may have been swapped
                    assert not pairing.vocabulary.special[batch["labels"][batch["weights"] > 0]].any()


def test_shapes_are_static(pairing):
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in pairing.batch().items()}
    for seed, epoch in ((1, 0), (0, 3), (7, 9)):
        again = pairing.batch(seed=seed, epoch=epoch)
        assert {name: (tensor.shape, tensor.dtype) for name, tensor in again.items()} == shapes
    part = pairing.batch(slice(3))
    assert {name: tensor.shape[1:] for name, tensor in part.items()} == {n: s[0][1:] for n, s in shapes.items()}
    assert {len(tensor) for tensor in part.values()} == {3}


def test_weight_is_the_number_of_predictions(pairing):
    batch = pairing.batch()
    weight = pairing.objective.weight(batch)
    assert weight > 0
    assert weight == sum(pairing.objective.weight(pairing.batch([row])) for row in range(len(pairing.rows.ids)))
    where = predicted(batch, pairing.rows.ids.shape[1])
    if where is not None:
        assert weight == len(where[0])


def test_loss_is_a_finite_sum_that_measure_reports(pairing):
    model, batch = pairing.model(), pairing.batch(slice(2))
    with torch.no_grad():
        together = pairing.objective.loss(model, batch).item()
        apart = [pairing.objective.loss(model, pairing.batch([row])).item() for row in (0, 1)]
        measured = pairing.objective.measure(model, batch)
    assert np.isfinite(together)
    assert all(loss > 0 for loss in apart)
    assert together == pytest.approx(sum(apart), rel=1e-5)
    assert next(iter(measured)) == "loss"
    assert measured["loss"] == pytest.approx(together, rel=1e-5)
    assert all(isinstance(value, float) and np.isfinite(value) for value in measured.values())
    assert 0 <= measured.get("accuracy", 0) <= pairing.objective.weight(batch)


def test_gradients_reach_every_parameter(pairing):
    """A parameter without a gradient would fail in DistributedDataParallel."""
    model = pairing.model().train()
    pairing.objective.loss(model, pairing.batch()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not [name for name, gradient in gradients.items() if gradient is None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    hooks = [hook for m in model.modules() for hook in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]
    assert not [hook for hook in hooks if hook.__module__.startswith("headstart")], (
        "transformers leaves hooks, Headstart does not"
    )


def test_a_few_steps_lower_the_loss(pairing):
    model, batch = pairing.model(), pairing.batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = pairing.objective.loss(model, batch) / pairing.objective.weight(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0], losses


def test_it_learns_real_text(pairing):
    """Within two minutes the loss falls halfway from its first value to the unigram entropy."""
    objective, module = pairing.objective, pairing.model().train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    key, first, loss = getattr(objective, "token_loss", "loss"), None, float("inf")
    end, step, size = time.process_time() + 120, 0, 16
    while time.process_time() < end:
        samples = [Sample(0, (step * size + row) % len(pairing.all_rows)) for row in range(size)]
        batch = objective.corrupt(pairing.all_rows.rows(samples), pairing.vocabulary, 0)
        if step % 5 == 0:
            with torch.no_grad():
                loss = objective.measure(module.eval(), batch)[key] / objective.weight(batch)
            first = loss if first is None else first
            if first < pairing.unigram_entropy:
                pytest.skip("its loss is not a cross-entropy over tokens; test_a_few_steps_lower_the_loss covers it")
            if loss <= (first + pairing.unigram_entropy) / 2:
                return
        (objective.loss(module.train(), batch) / objective.weight(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    pytest.fail(f"from {first:.2f} to {loss:.2f} in {step} steps; the unigram entropy is {pairing.unigram_entropy:.2f}")


def test_artifact_loads_in_plain_transformers(pairing, tmp_path):
    module, batch = pairing.model(), pairing.batch(slice(2))
    for name, part in pairing.objective.parts(module).items():
        part.save_pretrained(str(tmp_path / name))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".py")]

    def load(auto_class, part="", scale=1.0, **changes):
        auto = getattr(transformers, auto_class)
        loaded, info = auto.from_pretrained(str(tmp_path / part), output_loading_info=True)
        infos[loaded] = info
        return loaded

    infos = {}
    again = pairing.objective.assemble(load).eval()
    kept = [info for loaded, info in infos.items() if loaded in pairing.objective.parts(again).values()]
    assert kept and not any(value for info in kept for value in info.values()), kept
    with torch.no_grad():
        loss, loaded_loss = (pairing.objective.loss(network, batch) for network in (module, again))
    assert torch.equal(loaded_loss, loss)
    for name, part in pairing.objective.parts(module).items():
        other = pairing.objective.parts(again)[name].state_dict()
        assert all(torch.equal(value, other[key]) for key, value in part.state_dict().items())


@pytest.fixture(scope="module")
def texts_and_pairs(verses, tiny_tokenizer):
    """Tokenized examples, keyed by whether the objective reads two segments; pairs have `negative_input_ids`."""

    def ids(*texts, **more):
        return tiny_tokenizer(*texts, truncation=True, max_length=64, **more)["input_ids"]

    pairs = zip(verses[:16:2], verses[1:16:2], verses[100:108], strict=True)
    return {
        False: [{"input_ids": ids(text)} for text in verses[:8]],
        True: [
            {"input_ids": ids(first, second), "negative_input_ids": ids(other, add_special_tokens=False)}
            for first, second, other in pairs
        ],
    }


@pytest.fixture
def examples(pairing, texts_and_pairs):
    return texts_and_pairs[pairing.objective.row_shape(64).segments]


def test_collator_works_with_a_data_loader(pairing, examples):
    collator = pairing.objective.collator(pairing.tokenizer, seed=0)
    batches = list(DataLoader(examples, batch_size=4, collate_fn=collator))
    assert len(batches) == 2
    model = pairing.model()
    with torch.no_grad():
        assert all(torch.isfinite(model(**batch).loss) for batch in batches)
    again = list(DataLoader(examples, batch_size=4, collate_fn=collator))
    assert all(equal(left, right) for left, right in zip(batches, again, strict=True))
    for batch in batches:
        seen = batch["attention_mask"]
        if seen.dim() == 4:  # an additive attention mask
            seen = (seen[:, 0] == 0).any(1)
        assert not seen[batch["input_ids"] == pairing.tokenizer.pad_token_id].any()


def test_collator_works_with_the_trainer(pairing, examples, tmp_path):
    pytest.importorskip("accelerate", reason="Trainer needs accelerate")
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, logging_steps=1, learning_rate=1e-3,
        report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, remove_unused_columns=False,
    )  # fmt: skip
    model = pairing.model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    collator = pairing.objective.collator(pairing.tokenizer)
    trainer = Trainer(model, arguments, data_collator=collator, train_dataset=examples)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2 and np.isfinite(losses).all()
    assert any(not torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
