"""Language modeling as a task: every token is predicted once, and the nats are correct."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import RecipeError
from headstart.evaluation import metrics
from headstart.stages.finetune.learner import predict
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


def test_the_model_never_reads_the_token_that_it_predicts(rows, tiny_tokenizer):
    for feature in task_of(passes=4).encode(rows, InputSpec(tiny_tokenizer, "encoder", 64)):
        masked = [label != -100 for label in feature["labels"]]
        assert [token == tiny_tokenizer.mask_token_id for token in feature["input_ids"]] == masked
    for feature in task_of().encode(rows, InputSpec(tiny_tokenizer, "decoder", 64)):
        assert feature["input_ids"][1:] == feature["labels"][:-1], "a decoder's label is the next token"


def test_a_decoders_nats_are_its_log_probabilities(models, rows, tiny_tokenizer):
    task, spec, model = task_of(), InputSpec(tiny_tokenizer, "decoder", 200), models["decoder"]
    predictions = predict(model, task, task.encode(rows, spec), spec)
    for text, prediction in zip(rows.columns["text"], predictions, strict=True):
        ids = torch.tensor([tiny_tokenizer(text)["input_ids"][:-1]])
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].log_softmax(-1)
        expected = -log_probs.gather(1, ids[0, 1:, None]).sum().item()
        assert prediction == {
            "nats": pytest.approx(expected, rel=1e-4),
            "tokens": ids.shape[1] - 1,
            "bytes": len(text.encode()),
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_the_perplexity_of_a_uniform_model_is_the_vocabulary_size(family, models, rows, tiny_tokenizer, monkeypatch):
    model, task = models[family], task_of(overlap=3)
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    monkeypatch.setattr(head, "forward", lambda states: states.new_zeros(*states.shape[:-1], len(tiny_tokenizer)))
    spec = InputSpec(tiny_tokenizer, family, 16)
    predictions = predict(model, task, task.encode(rows, spec), spec)
    assert bias is None or bias.shape == (len(tiny_tokenizer),)
    scores = metrics.compute(task.metrics(), rows.labels, predictions)
    assert scores["perplexity"] == pytest.approx(len(tiny_tokenizer), rel=1e-4)
    tokens, size = (sum(prediction[unit] for prediction in predictions) for unit in ("tokens", "bytes"))
    assert scores["bits_per_byte"] == pytest.approx(math.log2(len(tiny_tokenizer)) * tokens / size, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_text_has_zero_nats(family, models, tiny_tokenizer):
    task, spec = task_of(), InputSpec(tiny_tokenizer, family, 32)
    rows = Examples({"text": ["", "In the beginning"]}, [None] * 2, "rows")
    empty, full = predict(models[family], task, task.encode(rows, spec), spec)
    assert empty == {"nats": 0.0, "tokens": 0, "bytes": 0} and full["nats"] > 0


def test_chunked_logits_give_the_same_nats(models, rows, tiny_tokenizer, monkeypatch):
    task, spec, model = task_of(), InputSpec(tiny_tokenizer, "decoder", 64), models["decoder"]
    features = task.encode(rows, spec)
    whole = predict(model, task, features, spec)
    monkeypatch.setattr("headstart.tasks.language_model.MAX_LOGITS", 1)
    for one, other in zip(predict(model, task, features, spec), whole, strict=True):
        assert one == {**other, "nats": pytest.approx(other["nats"], rel=1e-5)}


def test_the_overlap_must_be_shorter_than_a_window(rows, tiny_tokenizer):
    with pytest.raises(RecipeError, match=r"task\.overlap is 40, but training\.max_length leaves"):
        task_of(overlap=40).encode(rows, InputSpec(tiny_tokenizer, "decoder", 32))
