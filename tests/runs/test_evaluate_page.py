"""The page of errors by the real command line: `finetune` writes it, `evaluate` writes it for other data."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from headstart.core import artifact

DATA = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
FILES = ["evaluation.html", "evaluation.json", "evaluation.md"]
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)> `code` | [link](javascript:alert(3))"


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred test rows with markup in every text and in a further column."""
    path = tmp_path_factory.mktemp("data") / "marked.csv"
    with (DATA / "order-test.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row, _ in zip(csv.DictReader(file), range(100), strict=False)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "book"])
        writer.writeheader()
        for i, row in enumerate(rows):
            book = "<b>Genesis</b>" if i % 3 else ""
            writer.writerow({"text": f"{row['text']} {ATTACK}", "label": row["label"], "book": book})
    return path


def test_finetune_writes_the_page_beside_the_model(finetuned):
    for name in FILES:
        assert (finetuned.folder / name).is_file()
        assert name in finetuned.manifest["files"], "the page is part of the artifact"
    artifact.verify(finetuned.folder)
    assert f"errors: {finetuned.folder / 'evaluation.html'}" in finetuned.process.stdout
    facts = json.loads((finetuned.folder / "evaluation.json").read_text(encoding="utf-8"))
    best = finetuned.manifest["seed"]
    scores = finetuned.manifest["metrics"]["full"][best]
    assert {name: value["value"] for name, value in facts["metrics"].items()} == pytest.approx(scores)
    assert facts["rows"] == finetuned.manifest["data"]["test_rows"] and facts["model"] == f"full, seed {best}"
    assert facts["label_errors"]["models"] == 2, "the probabilities of both seeds are averaged"
    assert facts["calibration"]["accuracy"] == pytest.approx(scores["accuracy"])
    assert str(finetuned.folder) not in (finetuned.folder / "evaluation.html").read_text(encoding="utf-8")


def test_evaluate_prints_intervals_and_writes_no_page_by_default(finetuned, headstart, marked):
    before = sorted(marked.parent.iterdir())
    printed = json.loads(headstart("evaluate", str(finetuned.folder), str(marked)).stdout)
    low, high = printed["intervals"]["accuracy"]
    assert low <= printed["accuracy"] <= high and printed["rows"] == 100 and "page" not in printed
    assert sorted(marked.parent.iterdir()) == before


def test_evaluate_writes_the_page_and_runs_nothing_of_it(finetuned, headstart, marked, tmp_path):
    folder, model = tmp_path / "new" / "page", str(finetuned.folder)
    run = headstart("evaluate", model, str(marked), "--output", str(folder), "--by", "book", "--against", model)
    printed = json.loads(run.stdout)
    assert printed["page"] == str(folder / "evaluation.html") and sorted(p.name for p in folder.iterdir()) == FILES
    assert {name: part["rows"] for name, part in printed["by"].items()} == {"<b>Genesis</b>": 66, "(empty)": 34}
    against = printed["against"]
    assert (against["better"], against["worse"], against["equal"], against["p_value"]) == (0, 0, 100, 1.0)
    html, markdown = (Path(folder / name).read_text(encoding="utf-8") for name in ("evaluation.html", "evaluation.md"))
    assert "&lt;script&gt;alert(1)" in html and "&lt;b&gt;Genesis&lt;/b&gt;" in html
    assert not re.search(r"<script|<img|<b>Genesis", html)
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", markdown)
    assert "<script" not in outside_code and "](javascript" not in outside_code
    artifact.verify(finetuned.folder)


def test_what_cannot_be_done_is_refused(finetuned, pretrained, headstart, marked, tmp_path):
    model, data = str(finetuned.folder), str(marked)
    into_model = headstart("evaluate", model, data, "--output", model, expect=2)
    assert "would break its hashes" in into_model.stderr
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert "is a file" in headstart("evaluate", model, data, "--output", str(tmp_path / "file"), expect=2).stderr
    no_column = headstart("evaluate", model, data, "--by", "boook", expect=2)
    assert "no column 'boook'" in no_column.stderr and "did you mean 'book'" in no_column.stderr
    not_tuned = headstart("evaluate", model, data, "--against", str(pretrained.folder), expect=2)
    assert "needs an output of `headstart finetune`" in not_tuned.stderr
    text = headstart("evaluate", str(pretrained.folder), data, "--output", str(tmp_path / "p"), expect=2)
    assert "Leave out --output, --by, --against and overrides" in text.stderr and not (tmp_path / "p").exists()
