"""Prompting: templates, examples, word scores and calibration."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForMaskedLM, GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError, RecipeError
from headstart.stages.finetune.learner import predict
from headstart.tasks.prompt import Prompt
from headstart.tasks.template import Template

TRAIN = Examples({"text": [f"text {letter}" for letter in "abcdefghijklmnopqrst"]}, ["good", "bad"] * 10, "train.csv")


def task_of(train: Examples = TRAIN, **settings) -> Prompt:
    task = Prompt(Prompt.Config.model_validate(settings))
    task.fit_labels(train)
    return task


def rows(*texts: str) -> Examples:
    return Examples({"text": list(texts)}, ["good"] * len(texts), "rows")


@pytest.fixture(scope="module")
def decoder(tiny_tokenizer):
    torch.manual_seed(0)
    shape = {"n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(tiny_tokenizer), **shape)).eval()


@pytest.fixture(scope="module")
def encoder(checkpoint):
    return AutoModelForMaskedLM.from_pretrained(str(checkpoint("bert"))).eval()


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{text}", r"has no \{label\}"),
        ("It was {label}", r"has no \{text\}"),
        ("{text} {label} {label}", r"has \{label\} twice"),
        ("{text} {lable}", r"has the unknown field \{lable\}"),
        ("{text} {label", "cannot be parsed"),
    ],
)
def test_a_wrong_template_is_rejected(template, fault):
    with pytest.raises(ValidationError, match=fault):
        task_of(template=template)


def test_a_template_is_filled_around_the_label():
    template = Template("{a}? {label}, {b} {{so}}.", ["a", "b"])
    assert template.around(["One", "two"]) == ("One? ", ", two {so}.")
    assert template.written(["One", "two"], "Yes") == "One? Yes, two {so}."


def test_a_decoder_needs_the_label_last(tiny_tokenizer):
    with pytest.raises(RecipeError, match=r"has text after \{label\}.*Put \{label\} last"):
        task_of(template="It was {label}: {text}").encode(rows("a"), InputSpec(tiny_tokenizer, "decoder", 64))


def test_words_belong_to_labels_of_any_type():
    assert task_of(words={"good": "great", "bad": "awful"})._word("good") == "great"
    numbers = Examples({"text": ["a", "b"]}, [0, 1], "n.csv")
    assert task_of(numbers, words={0: "no", 1: "yes"})._word(1) == "yes"
    with pytest.raises(DataError, match=r"task\.words has a word for 'fine', but no row of train\.csv has"):
        task_of(words={"fine": "great"})


def test_the_seed_selects_and_orders_the_examples():
    task = task_of(shots=4)
    shown = []
    for seed in (0, 0, 1):
        task.show(TRAIN, seed)
        shown.append(task.shown)
    assert shown[0] == shown[1] != shown[2]
    assert all(len({text for text, _ in examples}) == 4 for examples in shown)
    task.show(TRAIN.take(range(4)), 0)
    first = task.shown
    task.show(TRAIN.take(range(4)), 1)
    assert sorted(first) == sorted(task.shown) and first != task.shown, "the same rows, in another order"
    with pytest.raises(DataError, match=r"task\.shots is 4, but there are only 3 training rows"):
        task.show(TRAIN.take(range(3)), 0)


def test_the_examples_come_before_the_question(tiny_tokenizer):
    task = task_of(shots=2, template="{text} is {label}", between=" . ")
    (feature, *_) = task.encode(rows("the sea"), InputSpec(tiny_tokenizer, "decoder", 64))
    (one, first), (other, second) = task.shown
    text = tiny_tokenizer.decode(feature["input_ids"], skip_special_tokens=True)
    expected = f"{one} is {first} . {other} is {second} . the sea is"
    assert text.replace(" ", "").startswith(expected.replace(" ", ""))


@pytest.mark.parametrize("words", [{"good": "and", "bad": "the"}, {"good": "and", "bad": "firmament of heaven"}])
def test_a_decoders_score_is_the_probability_of_the_word(words, decoder, tiny_tokenizer):
    """The sum of the log-probabilities of its tokens after the prompt."""
    task, spec = task_of(words=words), InputSpec(tiny_tokenizer, "decoder", 64)
    features = task.encode(rows("And God said"), spec)
    with torch.no_grad():
        outputs = task.predict(decoder, task.collate(features, spec))
    scores = np.zeros(2)
    for output, feature in zip(outputs, features, strict=True):
        scores[feature["words"]] = output
    for i, label in enumerate(task.labels):
        prompt, whole = (
            tiny_tokenizer(f"And God said\nLabel:{word}")["input_ids"][:-1] for word in ("", f" {words[label]}")
        )
        with torch.no_grad():
            log_probs = decoder(torch.tensor([whole])).logits[0].log_softmax(-1)
        expected = sum(log_probs[j - 1, whole[j]].item() for j in range(len(prompt), len(whole)))
        assert scores[i] == pytest.approx(expected, rel=1e-4)


def test_words_of_one_token_share_a_forward_pass(tiny_tokenizer):
    spec = InputSpec(tiny_tokenizer, "decoder", 64)
    assert len(task_of(words={"good": "and", "bad": "the"}).encode(rows("a"), spec)) == 1
    cloze = InputSpec(tiny_tokenizer, "encoder", 64)
    (feature,) = task_of(words={"good": "and", "bad": "the"}).encode(rows("a"), cloze)
    assert feature["input_ids"].count(tiny_tokenizer.mask_token_id) == 1 and len(feature["targets"]) == 2


def test_an_encoders_score_is_the_probability_at_the_mask(encoder, tiny_tokenizer):
    task = task_of(words={"good": "and", "bad": "the"}, template="It was {label}: {text}")
    spec = InputSpec(tiny_tokenizer, "encoder", 64)
    (feature,) = task.encode(rows("And God said"), spec)
    with torch.no_grad():
        (output,) = task.predict(encoder, task.collate([feature], spec))
        ids = torch.tensor([tiny_tokenizer("It was [MASK]: And God said")["input_ids"]])
        log_probs = encoder(ids).logits[0, ids[0] == tiny_tokenizer.mask_token_id].log_softmax(-1)
    expected = [log_probs[0, tiny_tokenizer.convert_tokens_to_ids(task._word(label))].item() for label in task.labels]
    assert feature["input_ids"] == ids[0].tolist() and output == pytest.approx(expected, rel=1e-4)


def test_a_cached_prefix_gives_the_same_scores(decoder, tiny_tokenizer, monkeypatch):
    task = task_of(shots=6, words={"good": "and", "bad": "the"})
    spec = InputSpec(tiny_tokenizer, "decoder", 128)
    batch = task.collate(task.encode(rows("the sea", "the dry land was called earth", "a"), spec), spec)
    calls: list[int] = []
    decoder.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        cached = task.predict(decoder, batch)
        assert len(calls) == 2, "the shared prefix has its own forward pass"
        monkeypatch.setattr("headstart.tasks.word_scores._MIN_SHARED_PREFIX", 10**6)
        expected = task.predict(decoder, batch)
    assert all(one == pytest.approx(other, rel=1e-4) for one, other in zip(cached, expected, strict=True))


@pytest.mark.parametrize("family", ["decoder", "encoder"])
def test_calibration_removes_a_bias(family, decoder, encoder, tiny_tokenizer, monkeypatch):
    """A head that always prefers one word also prefers it for content-free prompts, so calibration cancels it."""
    model, spec = {"decoder": decoder, "encoder": encoder}[family], InputSpec(tiny_tokenizer, family, 64)
    preferred = tiny_tokenizer.convert_tokens_to_ids("and")
    head = model.get_output_embeddings()
    forward = head.forward
    bias = torch.zeros(len(tiny_tokenizer)).index_fill_(0, torch.tensor(preferred), 50.0)
    monkeypatch.setattr(head, "forward", lambda states: forward(states) + bias)
    texts = rows("the sea", "the dry land", "a lamb", "fire came down", "seven days", "the king of")
    predictions = {}
    for calibrate in (False, True):
        task = task_of(words={"good": "and", "bad": "the"}, calibrate=calibrate)
        predictions[calibrate] = predict(model, task, task.encode(texts, spec), spec)
    assert set(predictions[False]) == {"good"}
    assert len(predictions[True]) == 6 and (family == "encoder" or set(predictions[True]) == {"good", "bad"})


def test_a_long_text_is_truncated_and_the_template_is_not(tiny_tokenizer):
    task = task_of(words={"good": "and", "bad": "the"}, template="{text} It was {label}")
    for family in ("decoder", "encoder"):
        (feature,) = task.encode(rows("the sea and " * 100), InputSpec(tiny_tokenizer, family, 32))
        assert 24 <= len(feature["input_ids"]) <= 32
        assert "It was" in tiny_tokenizer.decode(feature["input_ids"])


def test_examples_beyond_max_length_are_rejected(tiny_tokenizer):
    with pytest.raises(DataError, match=r"examples take \d+ tokens.*training\.max_length is 16.*lower task\.shots"):
        task_of(shots=8).encode(rows("the sea"), InputSpec(tiny_tokenizer, "decoder", 16))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["good " * 12 + "😀", "😀" * 30])
def test_a_character_of_several_tokens_is_truncated_too(text, tiny_tokenizers):
    task = task_of(words={"good": "and", "bad": "the"}, template="{text} It was {label}")
    (feature,) = task.encode(rows(text), InputSpec(tiny_tokenizers["bpe"], "decoder", 24))
    assert len(feature["input_ids"]) <= 24


def test_a_decoders_prompt_has_at_least_one_token(tiny_tokenizers):
    task = task_of(words={"good": "and", "bad": "the"}, template="{text} {label}")
    (feature, *_) = task.encode(rows(""), InputSpec(tiny_tokenizers["bpe"], "decoder", 24))
    assert feature["input_ids"] and all(i >= 0 for positions in feature["positions"] for i in positions)


def test_one_word_for_two_labels_is_rejected():
    with pytest.raises(ValidationError, match="same word for two labels"):
        task_of(words={"good": "fine", "bad": " fine"})


@pytest.fixture(scope="module")
def t5(tiny_tokenizer):
    """A tokenizer with sentinels, and a tiny encoder-decoder."""
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<extra_id_0>", "<extra_id_1>"]})
    torch.manual_seed(0)
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "initializer_factor": 3.0}
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, pad_token_id=0, **shape)
    return tokenizer, T5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("word", ["the", "firmament of heaven"])
@pytest.mark.parametrize(
    ("blank", "read", "written"),
    [
        (None, "It was <extra_id_0>: And God said", "<extra_id_0> {word}"),
        ("mask", "It was [MASK]: And God said", "[CLS] It was {word}"),
        ("none", "It was : And God said", "{word} [SEP]"),
    ],
)
def test_an_encoder_decoders_score_is_the_probability_that_its_decoder_writes_the_word(blank, read, written, word, t5):
    tokenizer, model = t5
    task = task_of(words={"good": "and", "bad": word}, template="It was {label}: {text}", blank=blank)
    spec = InputSpec(tokenizer, "encoder-decoder", 64)
    features = task.encode(rows("And God said"), spec)
    assert len(features) == (1 if word == "the" and blank != "none" else 2), "words of one token share a forward pass"
    with torch.no_grad():
        outputs = task.predict(model, task.collate(features, spec))
        found = next(o[f["words"].index(0)] for o, f in zip(outputs, features, strict=True) if 0 in f["words"])
        text = written.format(word=word)
        target = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        log_probs = model(torch.tensor([tokenizer(read)["input_ids"]]), labels=target).logits[0].log_softmax(-1)
    first = len(tokenizer(text.partition(word)[0], add_special_tokens=False)["input_ids"])
    expected = sum(log_probs[i, target[0, i]].item() for i in range(first, target.shape[1]))
    assert task._word("bad") == word and found == pytest.approx(expected, rel=1e-4)


def test_a_blank_that_the_tokenizer_lacks_is_refused(tiny_tokenizer):
    with pytest.raises(RecipeError, match=r"task\.blank is 'sentinel', but the model's tokenizer has no such token"):
        task_of(blank="sentinel").encode(rows("a"), InputSpec(tiny_tokenizer, "encoder-decoder", 64))
