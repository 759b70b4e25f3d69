"""Questions about a text: answers found in windows, and the best of them chosen."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.evaluation.answers import normalised, squad_f1
from headstart.tasks.source import CheckpointFolder
from headstart.tasks.span_qa import SpanQA


def task_of(**settings) -> SpanQA:
    return SpanQA(SpanQA.Config.model_validate(settings))


def rows(contexts, answers, questions=None) -> Examples:
    gold = [
        {"text": [text] if text is not None else [], "answer_start": [context.index(text)] if text is not None else []}
        for context, text in zip(contexts, answers, strict=True)
    ]
    columns = {"question": questions or ["What is it?"] * len(contexts), "context": list(contexts)}
    return Examples(columns, gold, "d.jsonl")


def told(features) -> list[np.ndarray]:
    """Logits of a model that knows the answers that the features carry."""
    outputs = []
    for feature in features:
        logits = np.zeros((len(feature["input_ids"]), 2), dtype=np.float32)
        for side, place in enumerate(feature["labels"]):
            logits[place, side] = 9.0 if place != feature["null"] else 1.0
        outputs.append(logits)
    return outputs


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_answers_come_back_from_their_tokens(kind, tiny_tokenizers, verses):
    contexts = [" ".join(verses[at : at + 4]) for at in range(0, 80, 4)]
    answers = [" ".join(context.split()[at : at + 3]) for at, context in enumerate(contexts)]
    task, reading = task_of(stride=16), InputSpec(tiny_tokenizers[kind], "encoder", 64)
    features = task.encode(rows(contexts, answers), reading, training=True)
    assert len(features) > 2 * len(contexts), "several windows for each"
    assert task.decode(told(features), features, reading) == answers


@pytest.mark.parametrize("name", ["squad/validation", "xquad/de", "xquad/zh"])
def test_gold_answers_of_real_data_are_found_again(name, data_folder, tiny_tokenizers):
    """Whole tokens may hold more than the answer, never less; of English hardly any differ once normalised."""
    table = pq.read_table(data_folder / "tasks" / f"{name}.parquet").slice(0, 200).to_pydict()
    examples = Examples({key: table[key] for key in ("question", "context")}, table["answers"], name)
    task, reading = task_of(max_answer=400), InputSpec(tiny_tokenizers["bpe"], "encoder", 384)
    features = task.encode(examples, reading, training=True)
    found = task.decode(told(features), features, reading)
    wanted = [answers["text"][0] for answers in table["answers"]]
    assert all(text.strip() in answer for text, answer in zip(wanted, found, strict=True))
    if name.startswith("squad"):
        same = [normalised(text) == normalised(answer) for text, answer in zip(wanted, found, strict=True)]
        assert np.mean(same) > 0.95 and squad_f1(examples.labels, found) > 0.98


def test_a_window_without_the_answer_points_to_none(tiny_tokenizer):
    context = "In the beginning God created the heaven and the earth. " * 8 + "And Amen."
    task, reading = task_of(stride=0), InputSpec(tiny_tokenizer, "encoder", 48)
    features = task.encode(rows([context], ["Amen"]), reading, training=True)
    *others, last = [feature["labels"] for feature in features]
    assert others and all(labels == [0, 0] for labels in others) and last != [0, 0]
    assert features[0]["input_ids"][0] == tiny_tokenizer.cls_token_id


def test_answers_and_question_cannot_be_confused(tiny_tokenizer):
    """Only tokens of the text, and the place of no answer, can be chosen."""
    task, reading = task_of(), InputSpec(tiny_tokenizer, "encoder", 48)
    (feature,) = task.encode(rows(["God created"], ["God"], ["God created what?"]), reading)
    allowed = [token for token, may in zip(feature["input_ids"], feature["answerable"], strict=True) if may]
    assert allowed == [
        tiny_tokenizer.cls_token_id,
        *tiny_tokenizer("God created", add_special_tokens=False)["input_ids"],
    ]
    assert "labels" not in feature, "what is to be answered carries no answer"


def piece(tokens: int, starts: dict[int, float], ends: dict[int, float], example: int = 0):
    """A window of one special token and so many one-letter tokens, with the logits given."""
    text = "abcdefghij"[:tokens]
    logits = np.full((tokens + 1, 2), -5.0, dtype=np.float32)
    for side, known in enumerate((starts, ends)):
        for place, value in known.items():
            logits[place, side] = value
    offsets = np.array([[-1, -1], *([at, at + 1] for at in range(tokens))])
    return logits, {"example": example, "offsets": offsets, "context": text, "null": 0, "input_ids": [0] * (tokens + 1)}


def decoded(pieces, **settings):
    outputs, features = zip(*pieces, strict=True)
    return task_of(**settings).decode(outputs, features, None), task_of(**settings).candidates(outputs, features)


def test_an_answer_ends_where_it_began_or_later_and_is_not_too_long():
    likely = piece(6, starts={5: 9.0, 2: 4.0}, ends={1: 9.0, 4: 3.0, 6: 3.5})
    (best,), _ = decoded([likely])
    assert best == "ef", "the end at a lies before the beginning at e"
    assert decoded([piece(6, {1: 9.0}, {6: 9.0, 2: 1.0})], max_answer=3)[0] == ["ab"]


def test_the_best_of_all_windows_is_taken_and_each_text_once():
    first = piece(4, {1: 2.0}, {2: 2.0})
    second = piece(4, {1: 3.0, 2: 1.0}, {2: 3.0, 4: 2.5})
    (best,), (candidates,) = decoded([first, second], n_best=3)
    assert best == "ab"
    assert [(c.text, c.score) for c in candidates] == [("ab", 6.0), ("abcd", 5.5), ("b", 4.0)]


def test_the_search_is_exact():
    """Every allowed stretch is looked at, however unlikely its beginning alone is."""
    chance = np.random.default_rng(0)
    for _ in range(20):
        logits, feature = piece(10, {}, {})
        logits[:] = chance.normal(size=logits.shape)
        scores = {(i, j): logits[i, 0] + logits[j, 1] for i in range(1, 11) for j in range(i, min(11, i + 4))}
        order = sorted(scores, key=lambda span: -scores[span])[:5]
        (found,) = task_of(max_answer=4, n_best=5).candidates([logits], [feature])
        assert [c.text for c in found] == ["abcdefghij"[i - 1 : j] for i, j in order]


def test_no_answer_must_lead_in_every_window():
    sure, unsure = piece(3, {0: 5.0, 1: 1.0}, {0: 5.0, 1: 1.0}), piece(3, {0: 0.0, 2: 2.0}, {0: 0.0, 3: 2.0})
    assert decoded([sure], impossible=True)[0] == [""]
    assert decoded([sure])[0] == ["a"], "every question has an answer unless the recipe says otherwise"
    assert decoded([sure, unsure], impossible=True)[0] == ["bc"]
    assert decoded([sure], impossible=True, null_threshold=8.5)[0] == ["a"]


def test_a_text_without_tokens_is_answered_by_nothing(tiny_tokenizer):
    task, reading = task_of(impossible=True), InputSpec(tiny_tokenizer, "encoder", 32)
    features = task.encode(rows(["", "God"], [None, "God"]), reading, training=True)
    assert task.decode(told(features), features, reading) == ["", "God"]


def test_a_wrong_place_is_named_with_its_row(tiny_tokenizer):
    examples = rows(["God created", "the heaven"], ["God", "heaven"])
    examples.labels[1]["answer_start"] = [2]
    with pytest.raises(
        DataError, match=r"d\.jsonl, row 2 has the answer 'heaven' at character 2, where 'context' has 'e"
    ):
        task_of().encode(examples, InputSpec(tiny_tokenizer, "encoder", 32), training=True)
    task_of().encode(examples, InputSpec(tiny_tokenizer, "encoder", 32))


@pytest.mark.parametrize(
    ("value", "fits", "fits_if_impossible"),
    [
        ({"text": ["a"], "answer_start": [0]}, True, True),
        ({"text": [], "answer_start": []}, False, True),
        ({"text": ["a", "b"], "answer_start": [0]}, False, False),
        ({"text": "a", "answer_start": 0}, False, False),
        ({"text": ["a"], "answer_start": [-1]}, False, False),
        ({"text": ["a"]}, False, False),
        ("a", False, False),
    ],
)
def test_what_answers_look_like(value, fits, fits_if_impossible):
    for impossible, expected in ((False, fits), (True, fits_if_impossible)):
        assert task_of(impossible=impossible).columns("train")[-1].kind.fits(value) is expected


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "deberta-v2", "albert", "electra"])
def test_every_encoder_has_the_head(kind, checkpoint):
    """Logits are finite where an answer may be, minus infinity elsewhere, and segments tell question from text."""
    task = task_of()
    source = CheckpointFolder(checkpoint(kind), task, 0)
    reading = source.reading(32)
    features = task.encode(rows(["God created the heaven", "and"], ["God", "and"]), reading, training=True)
    batch = task.collate(features, reading)
    with torch.no_grad():
        found = task.logits(source.pretrained().eval(), batch)
    assert found.shape == (*batch["input_ids"].shape, 2)
    assert (found.isfinite().all(-1) == batch["answerable"].bool()).all()
    if "token_type_ids" in batch:
        assert (batch["token_type_ids"].bool() >= batch["answerable"].bool())[:, 1:].all()


def test_a_tokenizer_that_puts_its_mark_last(tiny_tokenizer):
    """As XLNet's does: the place of no answer is where [CLS] stands."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer.backend_tokenizer, **tiny_tokenizer.special_tokens_map
    )
    from tokenizers import processors

    marks = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    template = processors.TemplateProcessing(
        single="$A [SEP] [CLS]", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=marks
    )
    changed = tokenizer.backend_tokenizer.__class__.from_str(tokenizer.backend_tokenizer.to_str())
    changed.post_processor = template
    own = PreTrainedTokenizerFast(tokenizer_object=changed, **tiny_tokenizer.special_tokens_map)
    reading = InputSpec(own, "xlnet", 32)
    (feature,) = task_of(impossible=True).encode(rows(["God"], [None]), reading, training=True)
    last = len(feature["input_ids"]) - 1
    assert feature["null"] == last and feature["labels"] == [last, last]
