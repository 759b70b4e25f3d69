"""Replaced-token detection: inputs of both networks, sampling, shared embeddings and the summed loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ElectraForPreTraining

from headstart.backbones.checkpoint import Checkpoint
from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample, Vocabulary
from headstart.objectives.replaced_token import ReplacedToken

SIZE, MASK, SPECIAL = 30, 4, 5
ENCODERS = ("bert", "roberta", "modernbert", "deberta-v2", "albert", "electra")


def synthetic_vocabulary(size: int = SIZE) -> Vocabulary:
    special = np.arange(size) < SPECIAL
    return Vocabulary(size, pad=0, cls=2, sep=3, mask=MASK, special=special, starts_word=~special)


def synthetic_rows(count: int, length: int, seed: int = 0, epoch: int = 0) -> Rows:
    ids = np.random.default_rng(seed).integers(SPECIAL, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(epoch, index) for index in range(count)])


def assembled(objective: ReplacedToken, kind: str = "electra", **backbone: object) -> torch.nn.Module:
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config.model_validate({"kind": kind, "size": "tiny", **backbone}))
    return objective.assemble(
        lambda auto, part="", scale=1.0, **changes: encoder.build(synthetic_vocabulary(), 32, auto, scale, **changes)
    ).eval()


def seen_by(network: torch.nn.Module) -> list[torch.Tensor]:
    """Return a list that collects the input ids of each call of a network."""
    seen: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True)
    return seen


@pytest.mark.parametrize("saved", [True, False], ids=["saved generator", "new generator"])
def test_widening_the_discriminator_widens_the_generator(tmp_path, saved):
    objective = ReplacedToken()
    before = assembled(objective, "bert")
    for name, part in objective.parts(before).items():
        if saved or not name:
            part.save_pretrained(str(tmp_path / name))
    backbone = Checkpoint(Checkpoint.Config.model_validate({"path": tmp_path, "grow": {"hidden": 256}}))
    after = objective.assemble(
        lambda auto, part="", scale=1.0, **changes: backbone.companion(part).build(
            synthetic_vocabulary(), 32, auto, scale, **changes
        )
    ).eval()
    widths = [part.get_input_embeddings().weight.shape[1] for part in objective.parts(after).values()]
    assert widths == [256, 256] and after.generator.config.num_hidden_layers == 1
    batch = objective.corrupt(synthetic_rows(4, 24), synthetic_vocabulary(), 0)
    with torch.no_grad():
        old, new = (objective.predict(module, batch) for module in (before, after))
    assert objective.total_loss(new, batch).isfinite()
    if saved:
        assert torch.allclose(new.generator_logits, old.generator_logits, atol=1e-4)
        assert torch.allclose(new.discriminator_logits, old.discriminator_logits, atol=1e-4)


@given(rate=st.floats(0.02, 0.9), length=st.integers(8, 64), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_exactly_the_selected_tokens_are_masked(rate, length, seed):
    rows = synthetic_rows(4, length, seed)
    batch = ReplacedToken(rate=rate).corrupt(rows, synthetic_vocabulary(), seed)
    assert (batch["originals"].numpy() == rows.ids).all()
    masked = batch["input_ids"] == MASK
    assert (masked.sum(1) == min(max(1, round(rate * length)), length - 2)).all()
    assert (batch["input_ids"][~masked] == batch["originals"][~masked]).all()
    assert (batch["weights"].sum(1) == masked.sum(1)).all()
    assert (batch["ordinary"].numpy() == (rows.ids >= SPECIAL)).all()
    assert (batch["draws"] >= 0).all() and (batch["draws"] < 1).all()


def sampling_batch(slots: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a batch of one row in which every position is masked."""
    batch = ReplacedToken().corrupt(synthetic_rows(1, slots, seed), synthetic_vocabulary(), seed)
    return {**batch, "positions": torch.arange(slots)[None], "weights": torch.ones(1, slots)}


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_samples_follow_the_generators_distribution_without_special_tokens(temperature):
    slots = 100_000
    objective, logits = ReplacedToken(temperature=temperature), torch.randn(SIZE, generator=torch.manual_seed(1)) * 2
    logits[MASK] = 20.0  # likely, but barred
    actual = torch.bincount(
        objective.sample(logits.expand(1, slots, SIZE), sampling_batch(slots))[0], minlength=SIZE
    ).numpy()
    expected = (logits[SPECIAL:].double() / temperature).softmax(0).numpy()
    assert actual[:SPECIAL].sum() == 0
    for count, fraction in zip(actual[SPECIAL:], expected, strict=True):
        assert abs(count - slots * fraction) <= 5 * math.sqrt(slots * fraction * (1 - fraction)) + 1


def test_extreme_draws_give_tokens_with_positive_probability():
    batch = sampling_batch(4)
    batch["draws"] = torch.tensor([[0.0, np.nextafter(np.float32(1), np.float32(0)), 0.5, 0.0]])
    logits = torch.full((1, 4, SIZE), -1e9)
    logits[..., 7], logits[..., 20] = 0.0, 0.0
    assert ReplacedToken().sample(logits, batch)[0].tolist()[:2] == [7, 20]


def test_samples_do_not_depend_on_the_labels():
    """The generator reads only the masked row, so its samples must not leak the original tokens."""
    objective = ReplacedToken()
    module = assembled(objective)
    rows = synthetic_rows(8, 32)
    batch = dict(objective.corrupt(rows, synthetic_vocabulary(), 0))
    seen = seen_by(module.discriminator)
    masked = batch["input_ids"] == MASK
    with torch.no_grad():
        objective.loss(module, batch)
        batch["labels"] = torch.randint(SPECIAL, SIZE, batch["labels"].shape)
        batch["originals"] = torch.where(masked, torch.randint(SPECIAL, SIZE, masked.shape), batch["originals"])
        objective.loss(module, batch)
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("kind", ENCODERS)
def test_discriminator_reads_the_samples(kind):
    objective = ReplacedToken(rate=0.3)
    module = assembled(objective, kind)
    rows = synthetic_rows(64, 32)
    batch = objective.corrupt(rows, synthetic_vocabulary(), 0)
    generator_saw, discriminator_saw = seen_by(module.generator), seen_by(module.discriminator)
    with torch.no_grad():
        output = objective.predict(module, batch)
    shown, masked = discriminator_saw[0], batch["input_ids"] == MASK
    assert torch.equal(generator_saw[0], batch["input_ids"])
    assert not (shown == MASK).any()
    assert torch.equal(shown[~masked], batch["originals"][~masked])
    special = batch["originals"] < SPECIAL
    assert ((shown < SPECIAL) == special).all(), "no special token is replaced, and none appears"
    assert torch.equal(output.replaced, (shown != batch["originals"]).float())
    right = masked & (shown == batch["originals"])
    assert right.sum() > 5, "with a small vocabulary, some samples equal the original token"
    assert not output.replaced[right].any(), "such samples count as original"
    sampled = objective.sample(output.generator_logits, batch)
    assert torch.equal(shown.gather(1, batch["positions"]), sampled)


def test_discriminator_loss_has_gradients_only_for_shared_generator_weights():
    objective = ReplacedToken()
    module = assembled(objective)
    batch = objective.corrupt(synthetic_rows(4, 32), synthetic_vocabulary(), 0)
    output = objective.predict(module, batch)
    F.binary_cross_entropy_with_logits(output.discriminator_logits, output.replaced).backward()
    shared = {id(parameter) for parameter in module.discriminator.parameters()}
    own = [parameter for parameter in module.generator.parameters() if id(parameter) not in shared]
    assert own and all(parameter.grad is None for parameter in own)


@pytest.mark.parametrize("kind", ENCODERS)
def test_embeddings_are_shared_and_the_generator_is_smaller(kind):
    module = assembled(ReplacedToken(generator=0.5), kind, size="mini")
    generator, discriminator = module.generator, module.discriminator
    tokens = discriminator.get_input_embeddings().weight
    assert generator.get_input_embeddings().weight is tokens
    assert generator.get_output_embeddings().weight is tokens
    if kind != "modernbert":
        tables = [model.base_model.embeddings.position_embeddings.weight for model in (generator, discriminator)]
        assert tables[0] is tables[1]
    assert isinstance(discriminator, ElectraForPreTraining) is (kind == "electra")
    if kind in ("electra", "albert"):
        assert generator.config.hidden_size == discriminator.config.hidden_size // 2
        assert generator.config.num_hidden_layers == discriminator.config.num_hidden_layers
    else:
        assert generator.config.hidden_size == discriminator.config.hidden_size
        assert generator.config.num_hidden_layers == discriminator.config.num_hidden_layers // 2
    layers = [
        sum(parameter.numel() for parameter in model.base_model.parameters()) for model in (generator, discriminator)
    ]
    assert layers[0] < layers[1]


@pytest.mark.parametrize("kind", ["electra", "bert"])
def test_loss_equals_the_papers_formula(kind):
    """Mean cross-entropy of the generator, plus 50 times the discriminator's mean over ordinary tokens."""
    objective = ReplacedToken()
    module = assembled(objective, kind)
    batch = objective.corrupt(synthetic_rows(6, 32), synthetic_vocabulary(), 0)
    seen = seen_by(module.discriminator)
    with torch.no_grad():
        loss = objective.loss(module, batch).item() / objective.weight(batch)
        measured = objective.measure(module, batch)
        labels = torch.where(batch["input_ids"] == MASK, batch["originals"], -100)
        generator_loss = module.generator(input_ids=batch["input_ids"], labels=labels).loss.item()
        logits = module.discriminator(input_ids=seen[0]).logits.reshape(6, 32)
    ordinary, replaced = batch["ordinary"] > 0, seen[0] != batch["originals"]
    discriminator_loss = F.binary_cross_entropy_with_logits(logits[ordinary], replaced[ordinary].float()).item()
    assert loss == pytest.approx(generator_loss + 50 * discriminator_loss, rel=1e-5)
    means = {name: value / objective.weight(batch) for name, value in measured.items()}
    assert means["generator_loss"] == pytest.approx(generator_loss, rel=1e-5)
    assert means["discriminator_loss"] == pytest.approx(discriminator_loss, rel=1e-5)
    assert means["accuracy"] == pytest.approx(((logits > 0) == replaced)[ordinary].float().mean().item(), rel=1e-5)
    assert means["replaced"] == pytest.approx(replaced[ordinary].float().mean().item(), rel=1e-5)


def test_unused_slots_have_no_effect():
    """Rows with no or few ordinary tokens, so that most slots are unused."""
    objective = ReplacedToken(rate=0.5)
    module = assembled(objective)
    ids = np.full((3, 16), 3)
    ids[1, 0], ids[1, 5] = 9, 11
    ids[2, 0] = 12
    batch = objective.corrupt(Rows(ids, [Sample(0, row) for row in range(3)]), synthetic_vocabulary(), 0)
    seen = seen_by(module.discriminator)
    with torch.no_grad():
        loss = objective.loss(module, batch)
    assert torch.isfinite(loss)
    assert objective.weight(batch) == 3
    masked = batch["input_ids"] == MASK
    assert masked.nonzero().tolist() == [[1, 0], [1, 5], [2, 0]]
    assert torch.equal(seen[0][~masked], batch["originals"][~masked])
    assert (seen[0][masked] >= SPECIAL).all()


@pytest.mark.parametrize("side", ["right", "left"])
def test_collated_batches_give_the_same_loss(side, verses, tiny_tokenizer):
    """Padding is neither read nor predicted, on either side."""
    objective = ReplacedToken()
    torch.manual_seed(0)
    encoder = Encoder(Encoder.Config(kind="deberta-v2", size="tiny", dropout=0.0))
    before, tiny_tokenizer.padding_side = tiny_tokenizer.padding_side, side
    try:
        collator = objective.collator(tiny_tokenizer)
        module = objective.assemble(
            lambda auto, part="", scale=1.0, **changes: encoder.build(collator.vocabulary, 64, auto, scale, **changes)
        )
        # With relative positions only, the output does not depend on the offset of a row.
        torch.nn.init.zeros_(module.discriminator.deberta.embeddings.position_embeddings.weight)
        examples = [{"input_ids": tiny_tokenizer(text)["input_ids"][:60]} for text in verses[:6]]
        together = collator(examples)
        apart = [collator([example]) for example in examples]
    finally:
        tiny_tokenizer.padding_side = before
    assert len({len(example["input_ids"]) for example in examples}) > 1
    with torch.no_grad():
        loss = module(**together).loss.item()
        counts = [int((batch["labels"] != -100).sum()) for batch in apart]
        losses = [module(**batch).loss.item() for batch in apart]
    assert loss == pytest.approx(np.average(losses, weights=counts), rel=1e-4)
