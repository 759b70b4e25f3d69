"""The mixture objective: the member of each row, the members' tensors and the summed loss."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from headstart.backbones.encoder import Encoder
from headstart.backbones.encoder_decoder import EncoderDecoder
from headstart.core import artifact, config
from headstart.core.data import Document, Rows, Sample, Vocabulary
from headstart.core.errors import RecipeError
from headstart.core.vocabulary import vocabulary_of
from headstart.objectives.masked_lm import MaskedLM
from headstart.objectives.mixture import Mixture
from headstart.objectives.span_corruption import SpanCorruption
from headstart.stages.pretrain import run as pretrain
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.tokens import shards
from headstart.tokens.rows import cut
from headstart.tokens.tokenizer import add_special

SIZE = 500
SPECIAL = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, pad=0, cls=2, sep=3, mask=4, special=SPECIAL, starts_word=~SPECIAL)
DIRECTIONS = [{"name": "masked_lm", "attention": way} for way in ("both", "left", "right", "prefix")]
DENOISERS = [
    {"name": "span_corruption", "mode": "[R]"},
    {"name": "span_corruption", "density": 0.5, "mean_length": 8, "mode": "[X]"},
    {"name": "prefix_lm", "prefix": 0.75, "mode": "[S]"},
]


def synthetic_rows(count: int, length: int = 32, start: int = 0) -> Rows:
    ids = np.random.default_rng(0).integers(5, SIZE, size=(count, length))
    ids[:, 0], ids[:, -1] = 2, 3
    return Rows(ids, [Sample(0, start + index) for index in range(count)])


def encoder() -> torch.nn.Module:
    torch.manual_seed(0)
    return Encoder(Encoder.Config(kind="bert", size="tiny", dropout=0.0)).build(VOCABULARY, 64, "AutoModelForMaskedLM")


def test_members_are_drawn_by_weight():
    mixture = Mixture(objectives=[{**DIRECTIONS[0], "weight": 2}, DIRECTIONS[1], {**DIRECTIONS[3], "weight": 0.5}])
    total = 20_000
    drawn = np.asarray(
        [mixture._draw_member(Sample(epoch, index), 0) for epoch in (0, 1) for index in range(total // 2)]
    )
    for position, fraction in enumerate(np.asarray([2, 1, 0.5]) / 3.5):
        spread = math.sqrt(total * fraction * (1 - fraction))
        assert abs((drawn == position).sum() - total * fraction) < 5 * spread
    again, other = drawn.reshape(2, -1)
    assert (again != other).mean() > 0.4, "the draw depends on the epoch"


def test_loss_is_the_sum_of_the_members_losses():
    mixture = Mixture(objectives=[*DIRECTIONS, {"name": "masked_lm", "rate": 0.4}])
    rows, model = synthetic_rows(24), encoder().eval()
    batch = mixture.corrupt(rows, VOCABULARY, 0)
    drawn = batch["member"].tolist()
    assert set(drawn) == {0, 1, 2, 3, 4}
    members = [MaskedLM(attention=d["attention"]) for d in DIRECTIONS] + [MaskedLM(rate=0.4)]
    losses, weights = np.zeros(5), np.zeros(5)
    with torch.no_grad():
        for row, member_index in enumerate(drawn):
            part = members[member_index].corrupt(rows.take(np.asarray([row])), VOCABULARY, 0)
            losses[member_index] += members[member_index].loss(model, part).item()
            weights[member_index] += members[member_index].weight(part)
        actual, measured = mixture.loss(model, batch).item(), mixture.measure(model, batch)
    assert mixture.weight(batch) == weights.sum()
    assert mixture.tokens(batch) == rows.ids.size
    assert actual == pytest.approx(losses.sum(), rel=1e-5)
    assert measured["loss"] == pytest.approx(losses.sum(), rel=1e-5)
    for index in range(5):
        assert measured[f"masked_lm-{index}/loss"] == pytest.approx(losses[index], rel=1e-5)
        assert measured[f"masked_lm-{index}/weight"] == weights[index]


def test_model_reads_each_row_once():
    mixture, model, read = Mixture(objectives=DIRECTIONS), encoder(), []
    batch = mixture.corrupt(synthetic_rows(16), VOCABULARY, 0)
    with model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: read.append(len(inputs[0]))):
        mixture.loss(model, batch)
    assert sum(read) == 16
    assert len(read) == len(set(batch["member"].tolist()))


def test_batch_contains_tensors_of_members_without_rows():
    mixture = Mixture(objectives=DIRECTIONS)
    many = mixture.corrupt(synthetic_rows(30), VOCABULARY, 0)
    for row in range(8):
        one = mixture.corrupt(synthetic_rows(1, start=row), VOCABULARY, 0)
        member_index = int(one["member"])
        assert {name: tensor.shape[1:] for name, tensor in one.items()} == {n: t.shape[1:] for n, t in many.items()}
        other_names = [n for n in one if "/" in n and not n.startswith(f"{member_index}/")]
        assert not any(one[name].any() for name in other_names)
        with torch.no_grad():
            assert mixture.measure(encoder(), one)[f"masked_lm-{(member_index + 1) % 4}/loss"] == 0


@pytest.fixture(scope="module")
def text_rows(tmp_path_factory, verses, tiny_tokenizer):
    """Return a function that creates rows of real text for an objective, and the vocabulary with its special tokens."""
    folder = tmp_path_factory.mktemp("shards")
    texts = (" ".join(verses[start : start + 12]) for start in range(0, 1200, 12))
    shards.write((Document(str(number), text) for number, text in enumerate(texts)), tiny_tokenizer, folder)

    def make(objective, seq_length, count):
        vocabulary = add_special(copy.deepcopy(tiny_tokenizer), objective.special_tokens())
        packed = cut(shards.Shards(folder), vocabulary, objective.row_shape(seq_length))
        return packed.rows([Sample(0, index) for index in range(count)]), vocabulary

    return make


@pytest.mark.parametrize("seq_length", [24, 64, 65, 100])
def test_denoisers_read_their_row_length_and_have_their_mode_token(seq_length, text_rows):
    mixture = Mixture(objectives=DENOISERS)
    rows, vocabulary = text_rows(mixture, seq_length, 30)
    alone = [member.row_shape(seq_length).length for member in mixture.members]
    assert rows.ids.shape[1] == max(alone)
    assert [new - old for new, old in zip(mixture._member_lengths(max(alone)), alone, strict=True)] in (
        [0] * 3, [-1, 0, -1],
    ), "of two sequence lengths with the same longest row, the smaller one counts"  # fmt: skip
    batch = mixture.corrupt(rows, vocabulary, 0)
    for index, mode in enumerate(("[R]", "[X]", "[S]")):
        selected = batch["member"] == index
        assert selected.sum() > 3
        inputs = batch[f"{index}/input_ids"][selected]
        assert (inputs[:, 0] == vocabulary.added[mode]).all()
        assert seq_length // 2 < inputs.shape[1] <= seq_length
    extreme = SpanCorruption(density=0.5, mean_length=8, mode="[X]")
    targets = np.flatnonzero(batch["member"].numpy() == 1)
    expected = extreme.corrupt(rows.take(targets), vocabulary, 0)
    assert all(torch.equal(batch[f"1/{name}"][targets], tensor) for name, tensor in expected.items())


def test_denoisers_train_together(text_rows):
    mixture = Mixture(objectives=DENOISERS)
    rows, vocabulary = text_rows(mixture, 32, 24)
    torch.manual_seed(0)
    backbone = EncoderDecoder(EncoderDecoder.Config(size="tiny", dropout=0.0))
    model = mixture.assemble(lambda auto_class, **_: backbone.build(vocabulary, 32, auto_class))
    batch, optimizer = mixture.corrupt(rows, vocabulary, 0), torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = mixture.measure(model, batch)
    for _ in range(6):
        (mixture.loss(model, batch) / mixture.weight(batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = mixture.measure(model, batch)
    losses = [name for name in before if name.endswith("loss")]
    assert len(losses) == 4 and all(after[name] < before[name] for name in losses)


def test_mixture_can_be_pickled():
    mixture = Mixture(objectives=DIRECTIONS)
    again = pickle.loads(pickle.dumps(mixture))
    rows = synthetic_rows(6)
    left, right = (one.corrupt(rows, VOCABULARY, 0) for one in (mixture, again))
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("side", ["right", "left"])
def test_collator_reads_whole_examples_with_the_members_directions(side, verses, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.padding_side = side
    examples = [{"input_ids": ids} for ids in tokenizer(verses[:16], truncation=True, max_length=60)["input_ids"]]
    collator = Mixture(objectives=DIRECTIONS).collator(tokenizer)
    together, apart = collator(examples), [collator([example]) for example in examples]
    assert [int((row["input_ids"] != 0).sum()) for row in apart] == [len(example["input_ids"]) for example in examples]
    assert len({tuple(row["attention_mask"][0, 0, 3, :5].tolist()) for row in apart}) > 2, "several directions"
    torch.manual_seed(0)
    model = Encoder(Encoder.Config(size="tiny")).build(vocabulary_of(tokenizer), 64, "AutoModelForMaskedLM").eval()
    with torch.no_grad():
        whole = model(**together).loss.item() * (together["labels"] != -100).sum().item()
        losses = [model(**row).loss.item() * (row["labels"] != -100).sum().item() for row in apart]
    assert whole == pytest.approx(sum(losses), rel=1e-5)


def test_the_collator_of_denoisers(verses, tiny_tokenizer):
    tokenizer, mixture = copy.deepcopy(tiny_tokenizer), Mixture(objectives=DENOISERS)
    vocabulary = add_special(tokenizer, mixture.special_tokens())
    examples = [{"input_ids": ids} for ids in tokenizer(verses[:24])["input_ids"]]
    batch = mixture.collator(tokenizer)(examples)
    ids = {mode: vocabulary.added[mode] for mode in ("[R]", "[X]", "[S]")}
    fronts = batch["input_ids"][:, 0].tolist()
    assert set(fronts) == set(ids.values())
    ordinary = ~vocabulary.special
    for row, example in enumerate(examples):
        written = batch["labels"][row][batch["labels"][row] != -100].numpy()
        shown = batch["input_ids"][row].numpy()
        seen = np.concatenate([shown[ordinary[shown]], written[ordinary[written]]])
        text = np.asarray(example["input_ids"])
        assert sorted(seen) == sorted(text[ordinary[text]]), "every token of an example is in the inputs or the labels"


def test_a_run_reports_each_member(tmp_path, verses):
    (tmp_path / "text.txt").write_text("\n".join(verses[:1500]), encoding="utf-8")
    recipe = config.fill(PretrainRecipe, {
        "output": str(tmp_path / "run"),
        "corpus": {"files": [str(tmp_path / "text.txt")], "validation": 0.1},
        "tokenizer": {"vocab_size": 400},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
        "objective": {"name": "mixture", "objectives": [{**DIRECTIONS[0], "weight": 3}, DIRECTIONS[1]]},
        "training": {"budget": "3 steps", "seq_length": 32, "batch_tokens": 512},
    })  # fmt: skip
    actual = artifact.read_manifest(pretrain.run(recipe, quiet=True))["metrics"]["validation"]
    assert list(actual) == ["loss", "masked_lm-0/loss", "masked_lm-1/loss"]
    low, high = sorted(actual[f"masked_lm-{index}/loss"] for index in (0, 1))
    assert 4 < low < actual["loss"] < high < 8, "a mean over the predictions of each member, and over all"


def test_incompatible_members_raise():
    make = lambda auto_class, part="", scale=1.0, **_: encoder()  # noqa: E731
    with pytest.raises(RecipeError, match=r"members of the mixture have no family in common\..* causal_lm-1 decoder"):
        Mixture(objectives=["masked_lm", "causal_lm"])
    with pytest.raises(RecipeError, match="denoising-0 and span_corruption-1 need rows of different shapes"):
        Mixture(objectives=["denoising", "span_corruption"])
    with pytest.raises(RecipeError, match=r"replaced_token-1 .*The members of a mixture share one network"):
        Mixture(objectives=["masked_lm", "replaced_token"]).assemble(make)
    with pytest.raises(RecipeError, match="span_boundary-1 trains additional weights"):
        Mixture(objectives=["masked_lm", "span_boundary"]).assemble(make)
    with pytest.raises(RecipeError, match="contains rows of several objectives"):
        mixture = Mixture(objectives=DIRECTIONS)
        mixture.as_inputs(mixture.corrupt(synthetic_rows(20), VOCABULARY, 0))
    for wrong in ([], "masked_lm", ["mixture"], [{"name": "masked_lm", "weight": -1}]):
        with pytest.raises(ValidationError):
            Mixture(objectives=wrong)
