"""Recipes are read, validated, filled with defaults and written back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from headstart.core import config
from headstart.core.config import Section
from headstart.core.errors import RecipeError
from headstart.core.recipes import schema as schemas
from headstart.stages.finetune.recipe import FinetuneRecipe
from headstart.stages.pretrain.recipe import PretrainRecipe
from headstart.verbs import by_verb, verb_of

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "recipes").rglob("*.yaml"))

PRETRAIN = """
output: runs/x
corpus: {files: [a.txt]}
backbone: {family: encoder, kind: bert, size: tiny}
objective: {name: masked_lm}
"""
FINETUNE = """
output: runs/y
model: runs/x
task: {kind: classify, label: topic}
data: {train: a.csv, validation: 20, test: b.csv}
adaptation: {name: full}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(raw: dict, model: type = PretrainRecipe) -> str:
    with pytest.raises(RecipeError) as caught:
        config.fill(model, raw)
    return str(caught.value)


def good() -> dict:
    return yaml.safe_load(PRETRAIN)


def test_defaults_are_filled_in(tmp_path):
    recipe = config.load(written(tmp_path, PRETRAIN), PretrainRecipe)
    assert recipe.training.seq_length == 128
    assert recipe.objective.rate == 0.15
    assert recipe.backbone.kind == "bert"
    assert config.to_dict(recipe)["objective"]["mask"] == 0.8


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("training.budget=5 min", "training.budget", "5 min"),
        ("training.learning_rate=1e-3", "training.learning_rate", 0.001),
        ("training.learning_rate=2E4", "training.learning_rate", 20000.0),
        ("training.torch_compile=true", "training.torch_compile", True),
        ("corpus.files=[a.txt, b.txt]", "corpus.files", ["a.txt", "b.txt"]),
        ("new.deep.key=3", "new.deep.key", 3),
        ("output=runs/a=b", "output", "runs/a=b"),
        ("tokenizer.path=", "tokenizer.path", None),
    ],
)
def test_overrides_are_parsed_as_yaml(override, key, value):
    node = config.apply_overrides(good(), [override])
    for part in key.split("."):
        node = node[part]
    assert node == value and type(node) is type(value)


def test_overrides_do_not_change_the_original():
    raw = good()
    config.apply_overrides(raw, ["corpus.files=[b.txt]"])
    assert raw == good()


def test_the_last_override_of_a_key_wins():
    assert config.apply_overrides({}, ["seed=1", "seed=2"])["seed"] == 2


@pytest.mark.parametrize("override", ["seed", "=3", "output.deeper=1", "seed=[1"])
def test_an_invalid_override_is_named(override):
    with pytest.raises(RecipeError, match="override"):
        config.apply_overrides(good(), [override])


@pytest.mark.parametrize(
    ("path", "hint", "key"),
    [
        ("trainig", "training", "trainig"),
        ("training.learning_rat", "learning_rate", "training.learning_rat"),
        ("objective.rat", "rate", "objective.rat"),
        ("backbone.sice", "size", "backbone.sice"),
        ("corpus.file", "files", "corpus.file"),
    ],
)
def test_a_misspelled_key_gets_a_hint(path, hint, key):
    message = refused(config.apply_overrides(good(), [f"{path}=1"]))
    assert f"{key} is not a known key; did you mean {hint!r}?" in message
    assert "Allowed here:" in message


def test_an_unknown_key_without_a_hint_lists_the_allowed_keys():
    message = refused(good() | {"zzz": 1})
    assert "zzz is not a known key." in message and "corpus" in message and "did you mean" not in message


def test_several_unknown_keys_share_one_list_of_allowed_keys():
    message = refused(good() | {"sede": 1, "zzz": 1})
    assert "sede is not a known key; did you mean 'seed'?\n" in message and "zzz is not a known key." in message
    assert message.count("Allowed here:") == 1


def test_a_misspelled_name_gets_a_hint():
    assert "did you mean 'masked_lm'?" in refused(good() | {"objective": {"name": "maskedlm"}})


def test_all_problems_are_reported_at_once():
    raw = config.apply_overrides(
        good(),
        ["seeed=1", "training.learning_rate=7", "objective.rate=1.5", "backbone.kind=gpt", "corpus.validation=0"],
    )
    message = refused(raw)
    for part in (
        "seeed",
        "training.learning_rate is 7",
        "objective.rate is 1.5",
        "backbone.kind",
        "corpus.validation is 0",
    ):
        assert part in message
    assert len(message.splitlines()) == 5


def test_bounds_are_shown_as_a_range_with_the_field_s_description():
    assert "objective.rate is 1.5; it must be in the range (0, 1)" in refused(
        good() | {"objective": {"name": "masked_lm", "rate": 1.5}}
    )
    assert "BERT used 0.15" in refused(good() | {"objective": {"name": "masked_lm", "rate": 1.5}})


def test_missing_sections_are_named():
    raw = good()
    del raw["objective"], raw["corpus"]
    message = refused(raw)
    assert "objective is missing; known: masked_lm" in message and "corpus is missing" in message


@pytest.mark.parametrize("value", [None, 3, [], {}, {"rate": 0.2}])
def test_a_section_without_its_selector_is_refused(value):
    assert "objective needs a name; known: masked_lm" in refused(good() | {"objective": value})


def test_a_section_may_be_just_a_name():
    assert config.fill(PretrainRecipe, good() | {"objective": "masked_lm"}).objective.rate == 0.15


def test_a_conflict_of_two_settings_is_reported():
    message = refused(good() | {"objective": {"name": "masked_lm", "mask": 0.8, "random": 0.5}})
    assert "objective" in message and "mask + random is 1.3" in message


def mixed(*objectives) -> dict:
    return good() | {"objective": {"name": "mixture", "objectives": list(objectives)}}


def test_a_list_of_sections_is_filled_and_can_be_read_back():
    recipe = config.fill(PretrainRecipe, mixed("masked_lm", {"name": "masked_lm", "rate": 0.4, "weight": 3}))
    filled = config.to_dict(recipe)
    first, second = filled["objective"]["objectives"]
    assert (first["rate"], first["weight"]) == (0.15, 1.0) and (second["rate"], second["weight"]) == (0.4, 3.0)
    assert config.to_dict(config.fill(PretrainRecipe, filled)) == filled


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "masked_lm", "rat": 0.1}, "objective.objectives.1.rat is not a known key; did you mean 'rate'?"),
        (
            {"name": "masked_lm", "wieght": 2},
            "objective.objectives.1.wieght is not a known key; did you mean 'weight'?",
        ),
        ({"name": "masked_lm", "weight": 0}, "objective.objectives.1.weight is 0; it must be greater than 0"),
        (
            {"name": "masked_ml"},
            "objective.objectives.1.name: objectives has no 'masked_ml'; did you mean 'masked_lm'?",
        ),
        ({"rate": 0.1}, "objective.objectives.1 needs a name"),
        ("mixture", "objective.objectives.1 is 'mixture', which is not allowed here."),
    ],
)
def test_problems_in_a_list_of_sections_name_their_key(section, message):
    assert message in refused(mixed("masked_lm", section))
    assert "training.budgett" in refused(mixed("masked_lm", section) | {"training": {"budgett": 1}}), "with all others"


def test_the_schema_contains_lists_of_sections():
    sections = schemas.schema(PretrainRecipe)["properties"]["objective"]["oneOf"]
    mixture = next(s for s in sections if s.get("properties", {}).get("name") == {"const": "mixture"})
    items = mixture["properties"]["objectives"]["items"]["oneOf"]
    assert "mixture" not in items[0]["enum"] and "masked_lm" in items[0]["enum"]
    masked = next(s for s in items if s.get("properties", {}).get("name") == {"const": "masked_lm"})
    assert {"rate", "weight"} <= masked["properties"].keys() and masked["additionalProperties"] is False
    alone = next(s for s in sections if s.get("properties", {}).get("name") == {"const": "masked_lm"})
    assert "weight" not in alone["properties"]


def test_an_invalid_budget_shows_valid_ones():
    assert "30 min" in refused(config.apply_overrides(good(), ["training.budget=soon"]))


def test_the_names_in_compare_with_are_checked():
    raw = yaml.safe_load(FINETUNE) | {"compare_with": ["majorty"]}
    assert "did you mean 'majority'?" in refused(raw, FinetuneRecipe)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("5E4", 50000.0),
        ("-1e2", -100.0),
        ("1.5e3", 1500.0),
        ("3", 3),
        ("0.5", 0.5),
        (".5e1", 5.0),
        ("'1e-3'", "1e-3"),
    ],
)
def test_numbers_are_parsed_as_numbers(tmp_path, text, value):
    parsed = config.parse(written(tmp_path, f"x: {text}\n"))["x"]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize("text", ["3 epochs", "1e", "e3", "1-2", "v1e3", "12:30 h", "12:30", "1:30.5", "010", "0b1"])
def test_words_with_digits_stay_strings(tmp_path, text):
    assert config.parse(written(tmp_path, f"x: {text}\n"))["x"] == text


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "t: {x: 1, x: 2}\n"])
def test_a_duplicate_key_is_refused_with_its_line(tmp_path, text):
    with pytest.raises(RecipeError, match=r"line \d+, column \d+.*occurs twice"):
        config.parse(written(tmp_path, text))


def test_aliases_are_refused(tmp_path):
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\n"
    with pytest.raises(RecipeError, match="aliases"):
        config.parse(written(tmp_path, bomb))
    with pytest.raises(RecipeError, match="aliases"):
        config.parse(written(tmp_path, "a: &a {x: 1}\nb: {<<: *a}\n"))


@pytest.mark.parametrize("text", ["[1, 2]", "", "just words", "a: [1", "a: !!python/object/apply:os.getcwd []"])
def test_a_file_that_is_not_a_mapping_is_refused(tmp_path, text):
    with pytest.raises(RecipeError, match=r"recipe\.yaml"):
        config.parse(written(tmp_path, text))


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes("a: ü".encode("latin-1"))
    with pytest.raises(RecipeError, match="UTF-8"):
        config.parse(path)


def test_here_is_the_folder_of_the_recipe(tmp_path, monkeypatch):
    path = written(tmp_path, "files: ['${here}/a.txt', {deep: '${here}'}]\nn: 3\n")
    assert config.parse(path) == {"files": [f"{tmp_path}/a.txt", {"deep": str(tmp_path)}], "n": 3}
    monkeypatch.chdir(tmp_path)
    assert config.parse(Path("recipe.yaml"))["files"][0] == "./a.txt"


def test_environment_variables_with_and_without_default(tmp_path, monkeypatch):
    path = written(tmp_path, "a: ${HS_TEST_ROOT:-/fallback}/x\nb: ${HS_TEST_ROOT:-}y\n")
    monkeypatch.delenv("HS_TEST_ROOT", raising=False)
    assert config.parse(path) == {"a": "/fallback/x", "b": "y"}
    monkeypatch.setenv("HS_TEST_ROOT", "/data")
    assert config.parse(path) == {"a": "/data/x", "b": "/datay"}
    monkeypatch.delenv("HS_TEST_ROOT")
    with pytest.raises(RecipeError, match=r"HS_TEST_ROOT.*not set"):
        config.parse(written(tmp_path, "a: ${HS_TEST_ROOT}\n"))


def test_a_missing_recipe_suggests_a_similar_file(tmp_path):
    written(tmp_path, PRETRAIN)
    with pytest.raises(RecipeError, match=r"did you mean 'recipe\.yaml'\?"):
        config.find(tmp_path / "recipes.yaml")


@pytest.mark.parametrize(("text", "model"), [(PRETRAIN, PretrainRecipe), (FINETUNE, FinetuneRecipe)])
def test_a_filled_recipe_written_and_read_again_is_equal(tmp_path, text, model):
    overrides = ["training.learning_rate=1e-6", "training.weight_decay=1e-20", "seed=12345678901234567890"]
    recipe = config.load(written(tmp_path, text), model, overrides)
    again = config.load(written(tmp_path, config.to_yaml(recipe)), model)
    assert again == recipe
    assert config.to_yaml(again) == config.to_yaml(recipe)


class Words(Section):
    words: list[str]
    numbers: list[float]
    table: dict[str, int]


# YAML folds old line separators such as U+0085 into a space; file and column names do not contain them.
PRINTABLE = st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"], include_characters="\n\t")


@given(
    st.builds(
        Words,
        words=st.lists(st.text(PRINTABLE, max_size=12).filter(lambda t: "${" not in t)),
        numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False)),
        table=st.dictionaries(st.from_regex(r"[a-z0-9_.+-]{1,8}", fullmatch=True), st.integers()),
    )
)
def test_any_values_survive_writing_and_reading(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("yaml") / "recipe.yaml"
    path.write_text(config.to_yaml(value), encoding="utf-8", newline="")
    assert config.load(path, Words) == value


@pytest.mark.parametrize(
    "word", ["1e3", "5E-4", "1_000", "yes", "null", "0x10", "2024-01-01", "12:30:45", "~", "=", "<<"]
)
def test_strings_that_look_like_numbers_stay_strings(tmp_path, word):
    value = Words(words=[word], numbers=[], table={word: 1})
    assert config.load(written(tmp_path, config.to_yaml(value)), Words) == value


def test_values_do_not_change_after_validation():
    recipe = config.fill(PretrainRecipe, good())
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        recipe.training.learning_rate = 3


class Inner(Section):
    depth: int = Field(1, ge=1)


class Outer(Section):
    inner: Inner | None = None


def test_hints_reach_into_optional_sections():
    assert "inner.dept is not a known key; did you mean 'depth'?" in refused({"inner": {"dept": 2}}, Outer)
    assert "inner.depth is 0; it must be at least 1" in refused({"inner": {"depth": 0}}, Outer)


def test_fingerprints_depend_only_on_the_content():
    a = {"x": 1, "y": [1.5, None, "ü"]}
    assert config.fingerprint(a) == config.fingerprint(dict(reversed(a.items())))
    assert config.fingerprint(a) == config.fingerprint(json.loads(json.dumps(a)))
    assert config.fingerprint(a) != config.fingerprint(a | {"x": 2})
    assert config.fingerprint([1, 2]) != config.fingerprint([2, 1])
    assert config.fingerprint(a) == "6684b990efc30636", (
        "changing it would make every unfinished run belong to another recipe"
    )
    assert len(config.fingerprint(a, 8)) == 8


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_the_schema_names_every_section_and_choice(verb):
    model = by_verb()[verb]
    schema = schemas.schema(model)
    json.dumps(schema)
    assert set(schema["properties"]) == set(model.model_fields)
    chosen = {"pretrain": ("objective", "name", "masked_lm"), "finetune": ("task", "kind", "classify")}[verb]
    kinds = [s for s in schema["properties"][chosen[0]]["oneOf"] if s.get("type") == "object"]
    entry = next(s for s in kinds if s["properties"][chosen[1]]["const"] == chosen[2])
    assert chosen[1] in entry["required"] and entry["additionalProperties"] is False
    assert not [ref for ref in _references(kinds) if ref]


def _references(node):
    if isinstance(node, dict):
        yield node.get("$ref")
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def examples() -> list[tuple[str, dict]]:
    recipes = [("pretrain", yaml.safe_load(PRETRAIN)), ("finetune", yaml.safe_load(FINETUNE))]
    recipes.append(("finetune", yaml.safe_load(FINETUNE) | {"adaptation": "full"}))
    return recipes + [(verb_of(raw), raw) for raw in map(config.parse, SHIPPED)]


@pytest.mark.parametrize(("verb", "raw"), examples())
def test_the_schema_accepts_recipes_and_refuses_errors(verb, raw):
    """The complete check needs the jsonschema package; without it only the top level is compared."""
    schema = schemas.schema(by_verb()[verb])
    try:
        import jsonschema
    except ImportError:
        assert set(schema["required"]) <= set(raw) <= set(schema["properties"])
        return
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    filled = config.to_dict(config.fill(by_verb()[verb], raw))
    assert not list(validator.iter_errors(raw))
    assert not list(validator.iter_errors(filled))
    assert list(validator.iter_errors(raw | {"trainig": {}}))
    assert list(validator.iter_errors(config.apply_overrides(filled, ["training.learning_rate=7"])))
