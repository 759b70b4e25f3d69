"""Tables as Markdown, CSV, Parquet and LaTeX, and what a study found on one page of Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headstart.core import artifact
from headstart.studies.judge.tables import Table
from headstart.studies.judge.verdicts import Verdict

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "–": "--", "₂": r"$_2$",
    "−": "$-$", "“": "``", "”": "''", "×": r"$\times$", "…": r"\ldots{}",
}  # fmt: skip


def markdown(table: Table) -> str:
    """Return a Markdown table; numbers are aligned to the right."""
    head = [column.name for column in table.columns]
    rule = ["--:" if column.is_number else "---" for column in table.columns]
    lines = [
        f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in row)} |" for row in [head, *table.texts()]
    ]
    lines.insert(1, f"|{'|'.join(rule)}|")
    return "\n".join(lines) + "\n"


def markdown_page(question: str, verdicts: Sequence[Verdict], summary: Sequence[str], tables: Sequence[Table]) -> str:
    """Return the question, the verdicts, what was done, and the tables that have rows."""
    parts = [f"# {question}", "\n".join(f"- **{one.word}**: {one.sentence()}" for one in verdicts)]
    parts += ["\n".join(f"- {said}" for said in summary)]
    parts += [f"## {table.title}\n{markdown(table)}".rstrip() for table in tables if table.rows]
    return "\n\n".join(filter(None, parts)) + "\n"


def as_csv(table: Table) -> str:
    """Return comma-separated values at full precision; nothing where there is none."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([["" if value is None else value for value in row] for row in table.rows])
    return sheet.getvalue()


def latex(table: Table) -> str:
    """Return a table in LaTeX, with the lines of booktabs."""
    align = "".join("r" if column.is_number else "l" for column in table.columns)
    head = " & ".join(_escaped(column.name) for column in table.columns)
    body = [" & ".join(map(_escaped, row)) + r" \\" for row in table.texts()]
    return "\n".join([
        r"% needs \usepackage{booktabs}", rf"\begin{{tabular}}{{{align}}}", r"\toprule", head + r" \\", r"\midrule",
        *body, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip


def write_all(table: Table, folder: Path) -> None:
    """Write a table in every form, under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in (("md", markdown(table)), ("csv", as_csv(table)), ("tex", latex(table))):
        artifact.write_whole(folder / f"{table.name}.{ending}", text)
    columns = {}
    for place, column in enumerate(table.columns):
        values = [row[place] for row in table.rows]
        is_number = column.is_number and all(value is None or isinstance(value, int | float) for value in values)
        kind = pa.float64() if is_number else pa.string()
        columns[column.name] = pa.array([v if v is None or is_number else str(v) for v in values], kind)
    staging = folder / f".{table.name}.parquet.staging"
    pq.write_table(pa.table(columns), staging)
    staging.replace(folder / f"{table.name}.parquet")


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
