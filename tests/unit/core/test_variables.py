"""The value of a variable is used by a run and shown nowhere."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from pydantic import Field

from headstart.core import config, log
from headstart.core.config import Section
from headstart.core.errors import DataError, RecipeError
from headstart.core.recipes import variables
from headstart.core.recipes.variables import Expanded
from headstart.studies.graph import Node

SECRET = "tok3n-of-a-user"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("HS_TEST_SECRET", SECRET)


class Inner(Section):
    count: int = 1
    kind: str = "a"


class Words(Section):
    """Sections of every kind."""

    output: Path = Path("runs/x")
    title: str = ""
    path: Path | None = None
    files: list[str] = Field([])
    inner: Inner = Inner()
    anything: dict[str, object] = Field({})


def filled(**raw: object) -> Words:
    return config.fill(Words, variables.expand(raw, here=Path("/recipes")))


def test_an_expanded_string_is_a_string_and_survives_copies():
    text = variables.expand("${HS_TEST_SECRET}/x")
    assert text == f"{SECRET}/x" and json.loads(json.dumps([text])) == [text]
    for again in (copy.deepcopy(text), copy.deepcopy({"a": text})["a"]):
        assert isinstance(again, Expanded) and again.template == "${HS_TEST_SECRET}/x"


def test_a_filled_recipe_remembers_its_variables_wherever_they_are():
    recipe = filled(
        title="by ${HS_TEST_SECRET}", path="${HS_TEST_SECRET}//x/", files=["a", "${HS_TEST_SECRET}/*.txt"],
        anything={"deep": [{"er": "${HS_TEST_SECRET}"}]},
    )  # fmt: skip
    assert recipe.path == Path(SECRET) / "x"
    assert SECRET in json.dumps(config.to_dict(recipe)), "identity is computed over the values"
    assert SECRET not in config.to_yaml(recipe)
    written = variables.written(config.to_dict(recipe))
    assert written["title"] == "by ${HS_TEST_SECRET}" and written["files"] == ["a", "${HS_TEST_SECRET}/*.txt"]
    assert written["anything"] == {"deep": [{"er": "${HS_TEST_SECRET}"}]}
    assert variables.written(config.to_dict(recipe.model_copy(update={"title": "new"})))["title"] == "new"


def test_numbers_are_written_by_value(monkeypatch):
    monkeypatch.setenv("HS_TEST_COUNT", "7")
    recipe = filled(inner={"count": "${HS_TEST_COUNT}", "kind": "${HS_TEST_SECRET}"})
    assert variables.written(config.to_dict(recipe))["inner"] == {"count": 7, "kind": "${HS_TEST_SECRET}"}


def test_here_is_written_relative_to_the_output(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    raw = {"output": str(tmp_path / "runs/x"), "files": ["${here}/../a.txt"]}
    recipe = config.fill(Words, variables.expand(raw, here=tmp_path / "recipes"))
    recipe.output.mkdir()
    (tmp_path / "a.txt").write_text("x")
    saved = variables.written(config.to_saved(recipe))["files"][0]
    assert saved == "${here}/./../../a.txt"
    assert Path(config.expand_saved(saved, recipe.output)).samefile(tmp_path / "a.txt")
    assert variables.written(config.to_dict(recipe))["files"] == ["${here}/../a.txt"]


@pytest.mark.parametrize("value", [SECRET, "/folder/of-someone/data", "Hunter2!", "a b c d"])
def test_no_message_shows_a_value(value, monkeypatch):
    monkeypatch.setenv("HS_TEST_SECRET", value)
    text = variables.expand("${HS_TEST_SECRET}/rows.csv")
    for message in (f"there is no file {text}", f"{value}: 3 rows", f"`{value}/other.csv` is empty", f"{value!r}."):
        assert value not in str(DataError(message, do=f"Check {text}"))
        record = log.logger.makeRecord("headstart", 20, "f", 1, message, (), None)
        assert value not in log._Message().format(record)


@pytest.mark.parametrize("value", ["a", "data", "no", "5"])
def test_a_value_that_is_an_ordinary_word_leaves_messages_readable(value, monkeypatch):
    monkeypatch.setenv("HS_TEST_SECRET", value)
    variables.expand("${HS_TEST_SECRET}/rows.csv")
    assert str(DataError("no data in 5 rows of a file")) == "no data in 5 rows of a file."
    assert str(DataError(f"there is no file {value}/x.csv")) == "there is no file ${HS_TEST_SECRET}/x.csv."


def test_a_validation_error_shows_the_variable_and_not_its_value(monkeypatch):
    for value in (SECRET, "x"):
        monkeypatch.setenv("HS_TEST_SECRET", value)
        with pytest.raises(RecipeError) as caught:
            filled(inner={"count": "${HS_TEST_SECRET}", "more": "${HS_TEST_SECRET}"}, files="${HS_TEST_SECRET}")
        message = str(caught.value)
        assert "inner.count is '${HS_TEST_SECRET}'" in message and "files is '${HS_TEST_SECRET}'" in message
        assert SECRET not in message


def test_an_error_of_a_loaded_file_shows_no_value(tmp_path):
    (tmp_path / "r.yaml").write_text("inner: {count: '${HS_TEST_SECRET}'}\n")
    with pytest.raises(RecipeError) as caught:
        config.load(tmp_path / "r.yaml", Words)
    assert SECRET not in str(caught.value) and "${HS_TEST_SECRET}" in str(caught.value)


def test_templates_reach_another_process(monkeypatch):
    recipe = config.to_dict(filled(files=["${HS_TEST_SECRET}/a.txt"]))
    node = Node("prepare", recipe, id="x")
    line = json.dumps({"node": node.to_dict(), "variables": variables.to_json(node.to_dict())})
    monkeypatch.setattr(variables, "_hidden", {})
    job = json.loads(line)
    restored = Node.from_dict(variables.from_json(job["node"], job["variables"]))
    assert restored.recipe == recipe
    assert variables.written(restored.to_dict())["recipe"]["files"] == ["${HS_TEST_SECRET}/a.txt"]
    assert SECRET not in str(DataError(f"there is no file {SECRET}/b.txt"))


def test_a_saved_recipe_is_read_where_a_variable_is_not_set(monkeypatch, tmp_path):
    saved = {"files": ["${HS_TEST_SECRET}/a.txt", "${HS_TEST_UNSET:-data}/b.txt"]}
    assert config.fill_saved(Words, saved, str(tmp_path)).files == [f"{SECRET}/a.txt", "data/b.txt"]
    monkeypatch.delenv("HS_TEST_SECRET")
    assert config.fill_saved(Words, saved, str(tmp_path)).files == ["${HS_TEST_SECRET}/a.txt", "data/b.txt"]


def test_control_characters_do_not_reach_a_terminal():
    assert str(RecipeError("the key \x1b[31mred\x07")) == r"the key \x1b[31mred\x07."
