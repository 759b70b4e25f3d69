"""Tables as people have them: encodings, separators and shapes of JSON are recognized, damage is named."""

from __future__ import annotations

import json

import pytest

from headstart.core.errors import DataError
from headstart.tasks import tables

ROWS = [("C'est très bon", "positif"), ("Déjà vu; rien, à voir", "négatif"), ('Il dit "non"', "négatif")]


def quoted(value: str, separator: str) -> str:
    doubled = value.replace('"', '""')
    return f'"{doubled}"' if separator in value or '"' in value else value


def as_csv(separator: str) -> str:
    lines = [f"texte{separator}avis"] + [separator.join(quoted(v, separator) for v in row) for row in ROWS]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("columns", [(), ("texte", "avis")])
def test_separator_and_encoding_are_recognized(tmp_path, separator, encoding, columns):
    path = tmp_path / "rows.csv"
    path.write_bytes(as_csv(separator).encode(encoding))
    table, form = tables.read(path, columns=columns)
    assert [(row["texte"], row["avis"]) for row in table.to_pylist()] == ROWS
    assert form.separator == separator
    assert form.encoding == encoding
    assert form.is_expected == (separator == "," and encoding == "utf-8")


def test_the_wanted_columns_decide_between_separators(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b;label\nx,y;1\nx,z;2\n")
    assert tables.recognize(path, ["label"]).separator == ";"
    assert tables.recognize(path, ["a"]).separator == ","


def test_one_column_needs_no_separator(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text\none, two\n")
    assert tables.recognize(path, ["text"]).separator in tables._SEPARATORS
    path.write_text("text\none\ntwo\n")
    assert tables.read(path)[0].to_pylist() == [{"text": "one"}, {"text": "two"}]


def test_a_json_array_and_json_lines_give_the_same_rows(tmp_path):
    rows = [{"other": 1}, {"text": "a", "label": "x"}, {"label": "y", "text": "b"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    array, form = tables.read(tmp_path / "rows.json")
    lines, _ = tables.read(tmp_path / "rows.jsonl")
    assert form.is_array
    assert array.to_pylist() == lines.to_pylist() == [{"other": r.get("other"), "text": r.get("text"),
                                                       "label": r.get("label")} for r in rows]  # fmt: skip


def test_json_lines_in_utf_16_are_read(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "é"}\n{"text": "ü"}\n', encoding="utf-16")
    assert tables.read(tmp_path / "rows.jsonl")[0].to_pylist() == [{"text": "é"}, {"text": "ü"}]


def test_damaged_utf_8_is_not_taken_for_another_encoding(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes("text,label\néàü,1\nïöä,2\n".encode() + b"\xff\xfe,3\n")
    with pytest.raises(DataError, match=r"rows\.csv, line 4, is not UTF-8 text"):
        tables.read(path)


@pytest.mark.parametrize("content", ["[1, 2]", "[{}, null]", "[{]", "[" * 100_000])
def test_an_array_without_objects_is_refused(tmp_path, content):
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(DataError, match=r"rows\.json"):
        tables.read(tmp_path / "rows.json")


def test_a_format_is_described():
    assert str(tables.TableFormat(".csv", "cp1252", ";")) == "CSV, separated by semicolons, CP1252"
    assert str(tables.TableFormat(".json", is_array=True)) == "a JSON array"
