"""Tables as Markdown, CSV, Parquet and LaTeX, and the report of a study in Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.core.pages import spreadsheet
from headstart.core.pages.markdown import escape, markdown_table
from headstart.studies.judge.tables import StudyTable
from headstart.studies.judge.verdicts import Verdict

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "–": "--", "₂": r"$_2$",
    "−": "$-$", "“": "``", "”": "''", "×": r"$\times$", "…": r"\ldots{}",
}  # fmt: skip


def markdown(table: StudyTable) -> str:
    """Return a Markdown table; numbers are aligned right."""
    header = [column.name for column in table.columns]
    return markdown_table(header, table.texts(), [column.is_number for column in table.columns]) + "\n"


def markdown_page(
    question: str, verdicts: Sequence[Verdict], summary: Sequence[str], tables: Sequence[StudyTable]
) -> str:
    """Return the question, the verdicts, the summary, and the tables that have rows."""
    parts = [f"# {escape(question)}"]
    parts.append("\n".join(f"- **{verdict.word}**: {escape(verdict.sentence())}" for verdict in verdicts))
    parts.append("\n".join(f"- {escape(line)}" for line in summary))
    parts += [f"## {escape(table.title)}\n{markdown(table)}".rstrip() for table in tables if table.rows]
    return "\n\n".join(filter(None, parts)) + "\n"


def as_csv(table: StudyTable) -> str:
    """Return comma-separated values at full precision; a missing value is an empty cell."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow([spreadsheet.cell(column.name) for column in table.columns])
    writer.writerows([[spreadsheet.cell(value) for value in row] for row in table.rows])
    return sheet.getvalue()


def latex(table: StudyTable) -> str:
    """Return a table in LaTeX, with the rules of booktabs."""
    align = "".join("r" if column.is_number else "l" for column in table.columns)
    header = " & ".join(_escape_latex(column.name) for column in table.columns)
    body = [" & ".join(map(_escape_latex, row)) + r" \\" for row in table.texts()]
    return "\n".join([
        r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule", header + r" \\", r"\midrule",
        *body, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def write_all(table: StudyTable, folder: Path) -> None:
    """Write a table to a folder in every format, under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, text in (("md", markdown(table)), ("csv", as_csv(table)), ("tex", latex(table))):
        artifact.write_whole(folder / f"{table.name}.{suffix}", text)
    staging = folder / f".{table.name}.parquet.staging"
    pq.write_table(_arrow(table), staging)
    staging.replace(folder / f"{table.name}.parquet")


def _arrow(table: StudyTable) -> pa.Table:
    columns = {}
    for index, column in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        is_number = column.is_number and all(value is None or isinstance(value, int | float) for value in values)
        dtype = pa.float64() if is_number else pa.string()
        columns[column.name] = pa.array([v if v is None or is_number else str(v) for v in values], dtype)
    return pa.table(columns)
