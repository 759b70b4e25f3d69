"""The report of a study as a page, and its pictures."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from headstart.core import artifact
from headstart.studies.graph import Cell, Graph, Node, cell_dir
from headstart.studies.grid import System
from headstart.studies.judge import curve_tables
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.results import Results
from headstart.studies.judge.verdicts import judge
from headstart.studies.render.figures import Figures
from headstart.studies.render.page import PageSection, Report, Sheet, render_report


@pytest.fixture
def state(study, results, scores, tmp_path):
    study = study.model_copy(update={"output": tmp_path})
    return SimpleNamespace(study=study, results=results, scores=scores, graph=Graph())


def test_the_page_is_complete_in_one_file(study, results, scores, state):
    verdicts = judge(study, results, Resamples(200))
    sections = [
        PageSection("Scores", Figures(state).scores(), [Sheet.of(s) for s in curve_tables.sheets(study, results)])
    ]
    report = Report(
        study.question, verdicts, ["Done & dusted."], sections, [Sheet.of(scores)], {"a": "x: <y>"}, {"b": "1"}
    )
    html = render_report(report)
    assert not re.search(r"<script|<link|src=|https?:", html)
    assert "prefers-color-scheme: dark" in html and "@media print" in html and "width=device-width" in html
    assert "Done &amp; dusted." in html and f'class="verdict {verdicts[0].word}"' in html
    assert "&lt;boom&gt;" in html and "<boom>" not in html and "x: &lt;y&gt;" in html
    body = html.partition("<body>")[2]
    assert body.count(study.question) == 1, "the question appears once"
    targets = re.findall(r'href="#(\w+)"', html)
    assert targets == re.findall(r'<section id="(\w+)"', html) and len(targets) == 4


def test_every_section_of_numbers_has_its_pictures(state):
    figures = Figures(state)
    legend, pictures = figures.scores()
    assert pictures.count("<figure>") == 2 and "full, labels 32: accuracy" in pictures
    ET.fromstring(pictures)
    ET.fromstring(legend)
    assert figures.costs() == [], "two systems are too few for a front"
    assert figures.training() == []


def test_a_system_looks_the_same_in_every_picture(state):
    figures = Figures(state)
    assert figures._marker("full") == figures._marker("full") != figures._marker("svm")


def pretraining(output, name, objective, losses):
    node = Node("pretrain", {"objective": objective}, (), {}, f"pretrain-{name}")
    with artifact.staged(
        cell_dir(output, node.id), "checkpoint", cost={"tokens": 100, "flops": 1e9, "kwh": 0.1}
    ) as staging:
        logs = getattr(staging, "path", staging) / "logs"
        logs.mkdir()
        lines = [{"step": n, "loss": loss, "tokens": 50.0 * n} for n, loss in enumerate(losses, start=1)]
        (logs / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"step": 2, "validation/loss": 1.0}])))
    return node


def test_losses_of_unlike_objectives_are_not_drawn_on_one_axis(study, scores, tmp_path):
    mixture = {"name": "mixture", "objectives": [{"name": "masked_lm"}, {"name": "causal_lm"}]}
    nodes = [
        pretraining(tmp_path, "1", {"name": "masked_lm"}, [5.0, 4.0]),
        pretraining(tmp_path, "2", {"name": "masked_lm", "whole_words": True}, [6.0, 5.0]),
        pretraining(tmp_path, "3", {"name": "replaced_token"}, [40.0, 30.0]),
        pretraining(tmp_path, "4", mixture, [5.0, 4.5]),
    ]
    graph = Graph()
    for node in nodes:
        graph.add(node)
        user = graph.add(Node("finetune", {}, (node.id,), {}, f"finetune-{node.id}"))
        graph.cells.append(Cell(System((f"start {node.id[-1]}",)), (), 0, user.id))
    study = study.model_copy(update={"output": tmp_path})
    drawn = Figures(SimpleNamespace(study=study, results=Results(), scores=scores, graph=graph)).training()
    titles = re.findall(r"<figcaption>([^<]*): loss over tokens", "".join(drawn))
    assert titles == [
        "Pre-training by masked_lm", "Pre-training by replaced_token", "Pre-training by mixture (masked_lm, causal_lm)"
    ]  # fmt: skip
    masked = next(picture for picture in drawn if "by masked_lm: loss over tokens" in picture)
    assert "start 1: loss 4.000" in masked and "start 2: loss 5.000" in masked and "start 3" not in masked


def test_recipes_of_a_shipped_study_are_part_of_the_report():
    """They contain `${here}`, which is written as in the file."""
    from headstart.core.recipes.text import parse
    from headstart.studies import study as stage
    from headstart.studies.render import report

    path = Path(__file__).parents[4] / "studies" / "quickstart.yaml"
    recipes = report._recipes(stage.StudyState(stage.load(path)))
    finetune = next(parse(text, name) for name, text in recipes.items() if name.startswith("full"))
    assert finetune["data"]["train"] == "${here}/../recipes/quickstart/data/order-train.csv"
