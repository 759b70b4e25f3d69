"""Distillation during pre-training: the terms of the loss and the initialization of the student."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.backbones.encoder import Encoder
from headstart.core.data import Rows, Sample
from headstart.core.distillation_losses import attention_scores
from headstart.core.errors import ArtifactError, RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.distillation import Distillation
from headstart.objectives.masked_lm import MaskedLM
from headstart.stages.pretrain.reopen import assembled

KINDS = ("bert", "modernbert", "roberta")


def build(tokenizer, kind="modernbert", size="tiny", seed=0):
    torch.manual_seed(seed)
    encoder = Encoder(Encoder.Config(kind=kind, size=size, dropout=0.0))
    return encoder.build(vocabulary_of(tokenizer), 64, "AutoModelForMaskedLM")


@pytest.fixture(scope="module")
def teacher(tiny_tokenizer, tmp_path_factory):
    def make(kind, size="tiny"):
        folder = tmp_path_factory.mktemp("teacher")
        build(tiny_tokenizer, kind, size, seed=7).save_pretrained(str(folder))
        return folder

    return make


@pytest.fixture(scope="module")
def batch(tiny_tokenizer):
    vocabulary = vocabulary_of(tiny_tokenizer)
    ids = np.random.default_rng(0).integers(5, vocabulary.size, (4, 32))
    return MaskedLM().corrupt(Rows(ids, [Sample(0, n) for n in range(4)]), vocabulary, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_the_teacher_has_zero_distillation_loss(kind, teacher, batch, tiny_tokenizer):
    objective = Distillation(teacher=teacher(kind), hidden=1.0, attention_maps=1.0)
    student = objective.assemble(lambda auto: build(tiny_tokenizer, kind)).eval()
    with torch.no_grad():
        measured, plain = objective.measure(student, batch), MaskedLM().measure(student.model, batch)
    for term in ("soft", "cosine", "hidden", "attention_maps"):
        assert measured[f"{term}_loss"] == pytest.approx(0, abs=1e-3), term
    assert measured["text_loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert measured["loss"] == pytest.approx(2 * measured["text_loss"], rel=1e-3)


@pytest.mark.parametrize("kind", (*KINDS, "albert", "electra"))
def test_attention_is_compared_before_the_softmax(kind, tiny_tokenizer):
    """The softmax of the scores gives the weights of eager attention, and the output is the same to the bit."""
    model = build(tiny_tokenizer, kind).eval()
    model.set_attn_implementation("eager")
    ids = torch.arange(10, 26).view(2, 8)
    mask = torch.tensor([[1] * 8, [1] * 6 + [0] * 2])
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=mask, output_attentions=True)
        with attention_scores(model):
            scored = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    assert torch.equal(plain.logits, scored.logits) and model.config._attn_implementation == "eager"
    for weights, scores in zip(plain.attentions, scored.attentions, strict=True):
        torch.testing.assert_close(scores[0].softmax(-1), weights[0])
        torch.testing.assert_close(scores[1, :, :, :6].softmax(-1), weights[1, :, :, :6], atol=1e-5, rtol=1e-4)
        assert (scores[1, :, :, 6:] == 0).all() and not torch.allclose(scores[0], weights[0])


def test_the_attention_term_alone_moves_the_attention_of_the_student(teacher, batch, tiny_tokenizer):
    weights = {"soft": 0.0, "text": 0.0, "cosine": 0.0, "attention_maps": 1.0}
    objective = Distillation(teacher=teacher("bert"), initialize=False, **weights)
    student = objective.assemble(lambda auto: build(tiny_tokenizer, "bert", seed=3)).train()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    losses = []
    for _ in range(20):
        losses.append(objective.loss(student, batch) / objective.weight(batch))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1].item() < 0.5 * losses[0].item()


@pytest.mark.parametrize(("kind", "size", "message"), [
    ("deberta-v2", "tiny", "attention scores of a 'deberta-v2' network"), ("bert", "mini", "2 attention heads"),
])  # fmt: skip
def test_attention_that_cannot_be_compared_is_refused(kind, size, message, teacher, tiny_tokenizer):
    objective = Distillation(teacher=teacher(kind, size), initialize=False, cosine=0.0, attention_maps=1.0)
    with pytest.raises(RecipeError, match=message):
        objective.assemble(lambda auto: build(tiny_tokenizer, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_terms_equal_those_from_full_outputs(kind, teacher, batch, tiny_tokenizer):
    """Compare each term with the full outputs of both models at all positions."""
    folder = teacher(kind)
    objective = Distillation(teacher=folder, initialize=False, hidden=1.0, attention_maps=1.0)
    student = objective.assemble(lambda auto: build(tiny_tokenizer, kind)).eval()
    with torch.no_grad():
        measured = objective.measure(student, batch)
    record = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        ours, theirs = (m(input_ids=batch["input_ids"], **record) for m in (student.model, objective._teacher))
    count = batch["positions"].shape[1]
    rows = torch.arange(4)[:, None]
    soft = torch.nn.functional.kl_div(
        (ours.logits[rows, batch["positions"]] / 2).log_softmax(-1),
        (theirs.logits[rows, batch["positions"]] / 2).softmax(-1),
        reduction="sum",
    )
    assert measured["soft_loss"] == pytest.approx(4 * soft.item(), rel=1e-4)
    cosine = 1 - torch.nn.functional.cosine_similarity(ours.hidden_states[-1], theirs.hidden_states[-1], dim=-1)
    assert measured["cosine_loss"] == pytest.approx(4 * count * cosine.mean().item(), rel=1e-4)
    squares = [((a - b) ** 2).mean() for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True)]
    assert measured["hidden_loss"] == pytest.approx(4 * count * torch.stack(squares).sum().item(), rel=1e-4)
    with attention_scores(student.model, objective._teacher), torch.no_grad():
        ours, theirs = (m(input_ids=batch["input_ids"], **record) for m in (student.model, objective._teacher))
    maps = [((a - b) ** 2).mean() for a, b in zip(ours.attentions, theirs.attentions, strict=True)]
    assert measured["attention_maps_loss"] == pytest.approx(4 * count * torch.stack(maps).sum().item(), rel=1e-4)
    assert min(measured.values()) >= 0


@pytest.mark.parametrize("kind", KINDS)
def test_student_is_initialized_from_the_mapped_layers(kind, tiny_tokenizer, tmp_path):
    torch.manual_seed(1)
    deep = Encoder(Encoder.Config(kind=kind, size="mini", dropout=0.0)).build(
        vocabulary_of(tiny_tokenizer), 64, "AutoModelForMaskedLM"
    )
    deep.save_pretrained(str(tmp_path))
    objective = Distillation(teacher=tmp_path)

    def shallow(auto):
        config = type(deep.config).from_dict(
            deep.config.to_dict() | {"num_hidden_layers": 2} | ({"layer_types": None} if kind == "modernbert" else {})
        )
        return type(deep)(config)

    student = objective.assemble(shallow)
    ours = next(m for m in student.model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 2)
    theirs = next(m for m in deep.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == 4)
    for index, source in enumerate((1, 3)):
        expected = theirs[source].state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in ours[index].state_dict().items())
    assert torch.equal(student.model.get_input_embeddings().weight, deep.get_input_embeddings().weight)


def test_shared_layer_of_albert_is_copied(tiny_tokenizer, tmp_path):
    deep = build(tiny_tokenizer, "albert", "mini", seed=1)
    deep.save_pretrained(str(tmp_path))
    config = type(deep.config).from_dict(deep.config.to_dict() | {"num_hidden_layers": 2})
    student = Distillation(teacher=tmp_path).assemble(lambda auto: type(deep)(config))
    expected = deep.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in student.model.state_dict().items())


def test_trained_student_is_not_reinitialized(teacher, tiny_tokenizer, tmp_path):
    folder = teacher("bert")
    objective = Distillation(teacher=folder)
    student = objective.assemble(lambda auto: build(tiny_tokenizer, "bert")).model
    with torch.no_grad():
        student.get_input_embeddings().weight.add_(1.0)
    student.save_pretrained(str(tmp_path))
    again = assembled(tmp_path, Distillation(teacher=folder)).model
    expected = student.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.state_dict().items())


def test_a_projection_is_learned_if_widths_differ(teacher, batch, tiny_tokenizer):
    wide = teacher("modernbert", "mini")
    with pytest.raises(RecipeError, match="teacher is 256, that of the student 128"):
        Distillation(teacher=wide).assemble(lambda auto: build(tiny_tokenizer))
    objective = Distillation(teacher=wide, hidden=1.0)
    student = objective.assemble(lambda auto: build(tiny_tokenizer))
    objective.loss(student, batch).backward()
    assert student.projection.weight.shape == (256, 128)
    assert student.projection.weight.grad.abs().sum() > 0
    assert list(objective.parts(student)) == [""]


def test_invalid_teacher_raises(teacher, tiny_tokenizer, tmp_path):
    with pytest.raises(ArtifactError, match=r"objective\.teacher` is None"):
        Distillation().assemble(lambda auto: build(tiny_tokenizer))
    model = build(tiny_tokenizer)
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(str(tmp_path))
    with pytest.raises(ArtifactError, match=r"tokenizer\.path"):
        Distillation(teacher=tmp_path).assemble(lambda auto: build(tiny_tokenizer))
