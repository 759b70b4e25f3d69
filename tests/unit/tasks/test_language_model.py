"""Language modelling as a task: every token predicted once, and what it cost."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import RecipeError
from headstart.evaluation import metrics
from headstart.stages.finetune.cell import predict
from headstart.tasks.language_model import LanguageModel

FAMILIES = ["encoder", "decoder", "encoder-decoder"]


def task_of(**settings) -> LanguageModel:
    return LanguageModel(LanguageModel.Config.model_validate(settings))


@pytest.fixture(scope="module")
def texts(verses) -> list[str]:
    return [verse for verse in verses if verse][:6]


@pytest.fixture(scope="module")
def rows(texts) -> Examples:
    return Examples({"text": texts}, [None] * len(texts), "rows")


@pytest.fixture(scope="module")
def models(tiny_tokenizer, checkpoint):
    """A tiny untrained model of each family."""
    torch.manual_seed(0)
    size, special = len(tiny_tokenizer), {"pad_token_id": tiny_tokenizer.pad_token_id}
    gpt2 = GPT2Config(vocab_size=size, n_positions=256, n_embd=32, n_layer=2, n_head=2, **special)
    t5 = T5Config(
        vocab_size=size, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0, **special
    )
    return {
        "encoder": AutoModelForMaskedLM.from_pretrained(str(checkpoint("bert"))).eval(),
        "decoder": GPT2LMHeadModel(gpt2).eval(),
        "encoder-decoder": T5ForConditionalGeneration(t5).eval(),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, {"overlap": 5, "passes": 3}, {"passes": 0}], ids=str)
@pytest.mark.parametrize("max_length", [16, 200])
def test_every_token_is_predicted_once(family, settings, max_length, rows, tiny_tokenizer):
    task = task_of(**settings)
    features = task.encode(rows, InputSpec(tiny_tokenizer, family, max_length))
    assert all(len(feature["input_ids"]) <= max_length for feature in features)
    for row, text in enumerate(rows.columns["text"]):
        pieces = [feature for feature in features if feature["example"] == row]
        predicted = sorted(label for piece in pieces for label in piece["labels"] if label != -100)
        assert predicted == sorted(tiny_tokenizer(text, add_special_tokens=False)["input_ids"])
        assert sum(piece["bytes"] for piece in pieces) == len(text.encode())


def test_a_label_is_never_shown_where_it_is_predicted(rows, tiny_tokenizer):
    for feature in task_of(passes=4).encode(rows, InputSpec(tiny_tokenizer, "encoder", 64)):
        hidden = [label != -100 for label in feature["labels"]]
        assert [token == tiny_tokenizer.mask_token_id for token in feature["input_ids"]] == hidden
    for feature in task_of().encode(rows, InputSpec(tiny_tokenizer, "decoder", 64)):
        assert feature["input_ids"][1:] == feature["labels"][:-1], "a decoder's label is the token that comes next"


def test_a_decoder_costs_what_its_probabilities_say(models, rows, tiny_tokenizer):
    task, reading, model = task_of(), InputSpec(tiny_tokenizer, "decoder", 200), models["decoder"]
    found = predict(model, task, task.encode(rows, reading), reading)
    for text, cost in zip(rows.columns["text"], found, strict=True):
        ids = torch.tensor([tiny_tokenizer(text)["input_ids"][:-1]])
        with torch.no_grad():
            chances = model(ids).logits[0, :-1].log_softmax(-1)
        by_hand = -chances.gather(1, ids[0, 1:, None]).sum().item()
        assert cost == {
            "nats": pytest.approx(by_hand, rel=1e-4),
            "tokens": ids.shape[1] - 1,
            "bytes": len(text.encode()),
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_a_clue_hesitates_among_the_whole_vocabulary(family, models, rows, tiny_tokenizer, monkeypatch):
    model, task = models[family], task_of(overlap=3)
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    monkeypatch.setattr(head, "forward", lambda states: states.new_zeros(*states.shape[:-1], len(tiny_tokenizer)))
    reading = InputSpec(tiny_tokenizer, family, 16)
    found = predict(model, task, task.encode(rows, reading), reading)
    assert bias is None or bias.shape == (len(tiny_tokenizer),)
    scores = metrics.compute(task.metrics(), rows.labels, found)
    assert scores["perplexity"] == pytest.approx(len(tiny_tokenizer), rel=1e-4)
    tokens, size = (sum(cost[unit] for cost in found) for unit in ("tokens", "bytes"))
    assert scores["bits_per_byte"] == pytest.approx(math.log2(len(tiny_tokenizer)) * tokens / size, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_text_costs_nothing(family, models, tiny_tokenizer):
    task, reading = task_of(), InputSpec(tiny_tokenizer, family, 32)
    rows = Examples({"text": ["", "In the beginning"]}, [None] * 2, "rows")
    empty, full = predict(models[family], task, task.encode(rows, reading), reading)
    assert empty == {"nats": 0.0, "tokens": 0, "bytes": 0} and full["nats"] > 0


def test_logits_in_parts_give_the_same(models, rows, tiny_tokenizer, monkeypatch):
    task, reading, model = task_of(), InputSpec(tiny_tokenizer, "decoder", 64), models["decoder"]
    features = task.encode(rows, reading)
    whole = predict(model, task, features, reading)
    monkeypatch.setattr("headstart.tasks.language_model._LOGITS_TOGETHER", 1)
    for one, other in zip(predict(model, task, features, reading), whole, strict=True):
        assert one == {**other, "nats": pytest.approx(other["nats"], rel=1e-5)}


def test_an_overlap_must_leave_room(rows, tiny_tokenizer):
    with pytest.raises(RecipeError, match=r"task\.overlap is 40, and training\.max_length leaves"):
        task_of(overlap=40).encode(rows, InputSpec(tiny_tokenizer, "decoder", 32))
