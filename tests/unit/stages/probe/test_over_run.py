"""What was learned when: the snapshots of a real run are probed, each against the tokens that it had read."""

from __future__ import annotations

import math

import pytest

import headstart
from headstart.core import artifact
from headstart.core.errors import ArtifactError, RecipeError
from headstart.evaluation.intervals import Estimate
from headstart.stages.pretrain.snapshots import snapshots_of
from headstart.stages.probe import over_run
from headstart.stages.probe.network import ProbedCheckpoint
from headstart.stages.probe.probe import Measured, Probe, ProbeReport, ProbeScore
from headstart.stages.probe.probes.minimal_pairs import MinimalPairs
from headstart.stages.probe.settings import ProbeSettings


@pytest.fixture
def pairs(write_pairs, tmp_path, sentences):
    return write_pairs(tmp_path / "pairs.csv", [(a, b) for a, b in zip(sentences[:20], sentences[20:40], strict=True)])


def test_each_snapshot_has_its_score_at_the_tokens_it_had_read(pretrained, pairs, tmp_path):
    settings = {"probes": ["minimal_pairs"], "text": pairs, "quiet": True}
    run = headstart.probe(pretrained, output=tmp_path / "out", over_run=True, **settings)
    rows = run.table("over_run")
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert [row["tokens"] for row in rows] == [3 * 256, 6 * 256, 9 * 256]
    for row, path in zip(rows, [*snapshots_of(pretrained).values(), pretrained], strict=True):
        alone = headstart.probe(path, output=tmp_path / path.name, **settings).scores[0]
        assert (row["value"], row["untrained"]) == (alone["value"], alone["untrained"])
    assert "Over the run: minimal_pairs" in run.page.read_text(encoding="utf-8")
    assert [row["model"] for row in run.scores] == [str(pretrained)], "the main figures are those of the finished run"


def test_blanks_are_filled_along_the_run(pretrained, tmp_path):
    (tmp_path / "blanks.txt").write_text("and he <b>said</b> ___ him\n", encoding="utf-8")
    settings = {"probes": ["cloze"], "text": tmp_path / "blanks.txt", "over_run": True, "quiet": True}
    run = headstart.probe(pretrained, output=tmp_path / "out", **settings)
    page = run.page.read_text(encoding="utf-8")
    assert "Blanks over the run" in page and "768 tokens" in page and "2,304 tokens" in page
    assert "<b>said" not in page


def test_a_model_without_snapshots_is_refused(encoder_folder, pairs, tmp_path):
    with pytest.raises(ArtifactError, match=r"has no snapshots.*training.snapshots=5"):
        headstart.probe(encoder_folder, probes=["minimal_pairs"], text=pairs, over_run=True, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_probes_that_show_no_learning_are_refused(pretrained, tmp_path):
    with pytest.raises(RecipeError, match=r"--over-run is set, and attribution does not show"):
        headstart.probe(pretrained, probes=["attribution"], over_run=True, output=tmp_path / "out")


class _Undefined(Probe):
    """A probe whose figure is what it measured."""

    def report(self, measured):
        (each,) = measured
        estimate = Estimate(each.trained, each.trained, each.trained)
        score = ProbeScore(each.model, "x", estimate, {"untrained": each.untrained}, unit="nats")
        return ProbeReport([score], [], {})


def _section_over(values, untrained):
    points = [
        over_run.RunPoint("m", step, 1_000_000 * step, {"p": Measured("m", "encoder", value, untrained)})
        for step, value in enumerate(values, start=1)
    ]
    (section,) = over_run.report({"p": _Undefined(ProbeSettings())}, points).sections
    return section


def test_an_undefined_figure_is_no_point_of_the_chart():
    section = _section_over([None, 5.0, 6.0], 4.0)
    chart, _ = section.figures
    assert "2,000,000 tokens: 5.00" in chart and "1,000,000 tokens" not in chart
    assert [row[3] for row in section.tables[0].rows] == ["–", "5.00 (5.00 to 5.00)", "6.00 (6.00 to 6.00)"]


@pytest.mark.parametrize(("untrained", "figures"), [(4.0, 2), (None, 0)])
def test_a_figure_that_is_never_defined_has_at_most_the_line_of_the_untrained_network(untrained, figures):
    section = _section_over([None, None], untrained)
    assert len(section.figures) == figures and len(section.tables[0].rows) == 2
    assert not any("000,000 tokens" in figure for figure in section.figures), "no point"


def test_a_snapshot_records_its_tokens(pretrained):
    records = [artifact.read_manifest(path)["progress"] for path in snapshots_of(pretrained).values()]
    assert records == [{"steps": 3, "tokens": 768}, {"steps": 6, "tokens": 1536}]


def test_the_points_of_a_score_have_its_mean(pretrained, pairs):
    probe = MinimalPairs(ProbeSettings(text=pairs))
    assert probe.prepare() is None
    found = probe.measure(ProbedCheckpoint(str(pretrained), 0).trained())
    (score,) = probe.report([Measured("m", "encoder", found, found)]).scores
    known = [value for value in score.points if not math.isnan(value)]
    assert sum(known) / len(known) == score.estimate.value
    assert (
        score.shown()
        == f"{100 * score.estimate.value:.1f} ({100 * score.estimate.low:.1f} to {100 * score.estimate.high:.1f})"
    )
