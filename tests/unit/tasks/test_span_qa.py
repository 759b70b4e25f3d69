"""Extractive question answering: windows, candidates and the choice among them."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerFast

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.evaluation.answers import normalized, squad_f1
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


def gold_logits(features) -> list[np.ndarray]:
    """Logits of a model that predicts the labels of the features."""
    outputs = []
    for feature in features:
        logits = np.zeros((len(feature["input_ids"]), 2), dtype=np.float32)
        for side, token in enumerate(feature["labels"]):
            logits[token, side] = 9.0 if token != feature["null"] else 1.0
        outputs.append(logits)
    return outputs


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_answers_are_decoded_from_their_tokens(kind, tiny_tokenizers, verses):
    contexts = [" ".join(verses[i : i + 4]) for i in range(0, 80, 4)]
    answers = [" ".join(context.split()[i : i + 3]) for i, context in enumerate(contexts)]
    task, spec = task_of(stride=16), InputSpec(tiny_tokenizers[kind], "encoder", 64)
    features = task.encode(rows(contexts, answers), spec, training=True)
    assert len(features) > 2 * len(contexts), "several windows per context"
    assert task.decode(gold_logits(features), features, spec) == answers


@pytest.mark.parametrize("name", ["squad/validation", "xquad/de", "xquad/zh"])
def test_gold_answers_of_real_data_are_recovered(name, data_folder, tiny_tokenizers):
    """Whole tokens may contain more than the answer, but never less; in English, few differ after normalization."""
    table = pq.read_table(data_folder / "tasks" / f"{name}.parquet").slice(0, 200).to_pydict()
    examples = Examples({key: table[key] for key in ("question", "context")}, table["answers"], name)
    task, spec = task_of(max_answer=400), InputSpec(tiny_tokenizers["bpe"], "encoder", 384)
    features = task.encode(examples, spec, training=True)
    predictions = task.decode(gold_logits(features), features, spec)
    expected = [answers["text"][0] for answers in table["answers"]]
    assert all(text.strip() in answer for text, answer in zip(expected, predictions, strict=True))
    if name.startswith("squad"):
        same = [normalized(text) == normalized(answer) for text, answer in zip(expected, predictions, strict=True)]
        assert np.mean(same) > 0.95 and squad_f1(examples.labels, predictions) > 0.98


def test_a_window_without_the_answer_has_the_null_label(tiny_tokenizer):
    context = "In the beginning God created the heaven and the earth. " * 8 + "And Amen."
    task, spec = task_of(stride=0), InputSpec(tiny_tokenizer, "encoder", 48)
    features = task.encode(rows([context], ["Amen"]), spec, training=True)
    *others, last = [feature["labels"] for feature in features]
    assert others and all(labels == [0, 0] for labels in others) and last != [0, 0]
    assert features[0]["input_ids"][0] == tiny_tokenizer.cls_token_id


def test_only_tokens_of_the_context_and_the_null_token_are_answerable(tiny_tokenizer):
    task, spec = task_of(), InputSpec(tiny_tokenizer, "encoder", 48)
    (feature,) = task.encode(rows(["God created"], ["God"], ["God created what?"]), spec)
    allowed = [token for token, can in zip(feature["input_ids"], feature["answerable"], strict=True) if can]
    assert allowed == [
        tiny_tokenizer.cls_token_id,
        *tiny_tokenizer("God created", add_special_tokens=False)["input_ids"],
    ]
    assert "labels" not in feature, "features for prediction have no labels"


def piece(tokens: int, starts: dict[int, float], ends: dict[int, float], example: int = 0):
    """A window of one special token and `tokens` one-letter tokens, with the given logits."""
    text = "abcdefghij"[:tokens]
    logits = np.full((tokens + 1, 2), -5.0, dtype=np.float32)
    for side, values in enumerate((starts, ends)):
        for token, value in values.items():
            logits[token, side] = value
    offsets = np.array([[-1, -1], *([i, i + 1] for i in range(tokens))])
    return logits, {"example": example, "offsets": offsets, "context": text, "null": 0, "input_ids": [0] * (tokens + 1)}


def decoded(pieces, **settings):
    outputs, features = zip(*pieces, strict=True)
    return task_of(**settings).decode(outputs, features, None), task_of(**settings).candidates(outputs, features)


def test_an_answer_does_not_end_before_its_start_and_is_not_too_long():
    (best,), _ = decoded([piece(6, starts={5: 9.0, 2: 4.0}, ends={1: 9.0, 4: 3.0, 6: 3.5})])
    assert best == "ef", "the end at a comes before the start at e"
    assert decoded([piece(6, {1: 9.0}, {6: 9.0, 2: 1.0})], max_answer=3)[0] == ["ab"]


def test_the_best_candidate_of_all_windows_wins_and_each_text_counts_once():
    first = piece(4, {1: 2.0}, {2: 2.0})
    second = piece(4, {1: 3.0, 2: 1.0}, {2: 3.0, 4: 2.5})
    (best,), (candidates,) = decoded([first, second], n_best=3)
    assert best == "ab"
    assert [(c.text, c.score) for c in candidates] == [("ab", 6.0), ("abcd", 5.5), ("b", 4.0)]


def test_the_search_is_exact():
    """All allowed spans are scored, even those with an unlikely start."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits, feature = piece(10, {}, {})
        logits[:] = rng.normal(size=logits.shape)
        scores = {(i, j): logits[i, 0] + logits[j, 1] for i in range(1, 11) for j in range(i, min(11, i + 4))}
        order = sorted(scores, key=lambda span: -scores[span])[:5]
        (candidates,) = task_of(max_answer=4, n_best=5).candidates([logits], [feature])
        assert [c.text for c in candidates] == ["abcdefghij"[i - 1 : j] for i, j in order]


def test_no_answer_must_win_in_every_window():
    sure, unsure = piece(3, {0: 5.0, 1: 1.0}, {0: 5.0, 1: 1.0}), piece(3, {0: 0.0, 2: 2.0}, {0: 0.0, 3: 2.0})
    assert decoded([sure], impossible=True)[0] == [""]
    assert decoded([sure])[0] == ["a"], "by default, every question has an answer"
    assert decoded([sure, unsure], impossible=True)[0] == ["bc"]
    assert decoded([sure], impossible=True, null_threshold=8.5)[0] == ["a"]


def test_a_context_without_tokens_gives_an_empty_answer(tiny_tokenizer):
    task, spec = task_of(impossible=True), InputSpec(tiny_tokenizer, "encoder", 32)
    features = task.encode(rows(["", "God"], [None, "God"]), spec, training=True)
    assert task.decode(gold_logits(features), features, spec) == ["", "God"]


def test_a_wrong_answer_start_is_reported_with_its_row(tiny_tokenizer):
    examples = rows(["God created", "the heaven"], ["God", "heaven"])
    examples.labels[1]["answer_start"] = [2]
    with pytest.raises(
        DataError, match=r"d\.jsonl, row 2 has the answer 'heaven' at character 2, but 'context' has 'e"
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
def test_the_answers_column_checks_its_values(value, fits, fits_if_impossible):
    for impossible, expected in ((False, fits), (True, fits_if_impossible)):
        assert task_of(impossible=impossible).columns("train")[-1].kind.fits(value) is expected


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "deberta-v2", "albert", "electra"])
def test_every_encoder_has_the_head(kind, checkpoint):
    """Logits are finite where an answer can be and minus infinity elsewhere; token types separate the texts."""
    task = task_of()
    source = CheckpointFolder(checkpoint(kind), task, 0)
    spec = source.input_spec(32)
    features = task.encode(rows(["God created the heaven", "and"], ["God", "and"]), spec, training=True)
    batch = task.collate(features, spec)
    with torch.no_grad():
        logits = task.logits(source.pretrained().eval(), batch)
    assert logits.shape == (*batch["input_ids"].shape, 2)
    assert (logits.isfinite().all(-1) == batch["answerable"].bool()).all()
    if "token_type_ids" in batch:
        assert (batch["token_type_ids"].bool() >= batch["answerable"].bool())[:, 1:].all()


def test_the_null_token_is_cls_even_at_the_end(tiny_tokenizer):
    """XLNet's tokenizer puts [CLS] last."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer.backend_tokenizer, **tiny_tokenizer.special_tokens_map
    )
    from tokenizers import processors

    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    template = processors.TemplateProcessing(
        single="$A [SEP] [CLS]", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=special
    )
    changed = tokenizer.backend_tokenizer.__class__.from_str(tokenizer.backend_tokenizer.to_str())
    changed.post_processor = template
    own = PreTrainedTokenizerFast(tokenizer_object=changed, **tiny_tokenizer.special_tokens_map)
    spec = InputSpec(own, "xlnet", 32)
    (feature,) = task_of(impossible=True).encode(rows(["God"], [None]), spec, training=True)
    last = len(feature["input_ids"]) - 1
    assert feature["null"] == last and feature["labels"] == [last, last]


@pytest.mark.parametrize("impossible", [False, True])
def test_a_decoder_reads_the_question_first_and_refuses_at_its_last_token(impossible, decoder_folder):
    """The saved model gives the same logits in plain transformers."""
    task = SpanQA(SpanQA.Config(impossible=impossible))
    source = CheckpointFolder(decoder_folder("gpt2"), task, 0)
    spec, model = source.input_spec(48), source.pretrained().eval()
    rows = task.toy_examples(["In the beginning God created the heaven", "And God said"])
    features = task.encode(rows, spec, training=True)
    last = len(features[0]["input_ids"]) - 1
    assert features[0]["null"] == last and features[0]["offsets"][last, 0] < 0, "the last token is special"
    assert (features[0]["labels"] == [last, last]) is impossible
    with torch.no_grad():
        outputs = task.predict(model, task.collate(features, spec))
    assert len(task.decode(outputs, features, spec)) == 2
    task.save(model, spec, decoder_folder("gpt2") / "tuned-qa")
    plain = AutoModelForQuestionAnswering.from_pretrained(str(decoder_folder("gpt2") / "tuned-qa")).eval()
    with torch.no_grad():
        starts = plain(torch.tensor([features[0]["input_ids"]])).start_logits[0].numpy()
    possible = np.isfinite(outputs[0][:, 0])
    assert outputs[0][possible, 0] == pytest.approx(starts[possible], rel=1e-4, abs=1e-5)
