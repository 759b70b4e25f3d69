"""Tables as Markdown, CSV, Parquet and LaTeX, and the short report."""

from __future__ import annotations

import csv
import io

import pyarrow.parquet as pq
import pytest

from headstart.studies.judge import curve_tables
from headstart.studies.judge.pairing import Resamples
from headstart.studies.judge.tables import StudyTable, TableColumn
from headstart.studies.judge.verdicts import judge
from headstart.studies.render import formats


def values(table, name):
    index = [column.name for column in table.columns].index(name)
    return [row[index] for row in table.rows]


def test_every_format_has_the_same_values(scores, tmp_path):
    formats.write_all(scores, tmp_path)
    rows = list(csv.reader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert len(rows) == len(scores.rows) + 1 and float(rows[1][5]) == values(scores, "mean")[0]
    assert pq.read_table(tmp_path / "table.parquet")["mean"].to_pylist() == values(scores, "mean")
    lines = (tmp_path / "table.md").read_text().splitlines()
    pipes = {line.replace(r"\|", "").count("|") for line in lines}
    assert len(pipes) == 1, "a | in a name would break the columns"
    assert any(r"a\|b" in line for line in lines) and any(r"\<boom>" in line for line in lines)
    latex = (tmp_path / "table.tex").read_text()
    assert r"\toprule" in latex and r"$<$boom$>$ \& more" in latex


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=HYPERLINK(0)", "'=HYPERLINK(0)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("a=b", "a=b"),
        ("-3.0 ± 0.2", "-3.0 ± 0.2"),
        ("-3.0", "-3.0"),
        (-3.5, "-3.5"),
        (None, ""),
    ],
)
def test_a_cell_that_a_spreadsheet_would_run_is_escaped(value, cell):
    table = StudyTable("t", "T", [TableColumn("=name", str), TableColumn("x", str)], [[value, 1]], [False])
    header, row = list(csv.reader(io.StringIO(formats.as_csv(table))))
    assert header[0] == "'=name" and row == [cell, "1"]


def test_the_short_report_has_the_question_the_verdicts_and_the_scores(study, results):
    verdicts = judge(study, results, Resamples(300))
    text = formats.markdown_page(study.question, verdicts, ["24 cells."], curve_tables.sheets(study, results))
    assert text.startswith(f"# Who wins?\n\n- **{verdicts[0].word}**: ") and "\n- 24 cells.\n" in text
    assert "## a\\|b\n| system | 32 labels |" in text and text.count("\n| full |") == 2
    assert text.count(study.question) == 1
