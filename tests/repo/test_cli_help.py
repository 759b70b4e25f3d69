"""docs/help.md and docs/reference agree with the command line and the package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Annotated

import pytest
import typer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_help(load_script) -> ModuleType:
    return load_script("docs/make_help.py")


def test_help_page_equals_the_command_line(make_help):
    from headstart.cli import app

    assert make_help.PAGE.is_file(), "docs/help.md is missing; run `make docs`"
    assert make_help.PAGE.read_text(encoding="utf-8") == make_help.render(app), "docs/help.md is stale; run `make docs`"


def test_page_shows_arguments_options_defaults_and_sub_commands(make_help):
    app = typer.Typer(help="A kitchen.")

    @app.callback()
    def kitchen() -> None: ...

    @app.command()
    def bake(
        cake: Annotated[str, typer.Argument(help="Which cake.")],
        toppings: Annotated[list[str] | None, typer.Argument(help="What goes on it.")] = None,
        minutes: Annotated[int, typer.Option("--minutes", "-m", help="How long.")] = 40,
        fan: Annotated[bool, typer.Option(help="With the fan.")] = False,
    ) -> None:
        """Bake one cake.

        It takes a while.
        """

    @app.command(hidden=True)
    def burn() -> None:
        """Never shown."""

    page = make_help.render(app, "kitchen")
    assert "A kitchen." in page
    assert "- `kitchen bake`: Bake one cake.\n" in page
    assert "## kitchen bake\n\n```\nkitchen bake [OPTIONS] CAKE [TOPPINGS...]\n```\n\nBake one cake." in page
    assert "- `CAKE`: Which cake.\n- `[TOPPINGS...]`: What goes on it.\n" in page
    assert "- `--minutes, -m`: How long. Default: `40`.\n- `--fan / --no-fan`: With the fan.\n" in page
    assert "burn" not in page


def test_the_reference_equals_the_package(load_script):
    make_reference = load_script("docs/make_reference.py")
    stale = [
        name
        for name, text in make_reference.pages().items()
        if (make_reference.FOLDER / name).read_text(encoding="utf-8") != text
    ]
    assert not stale, f"docs/reference is stale ({', '.join(stale)}); run `make docs`"


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ({"type": "integer", "minimum": 1}, "integer ≥ 1"),
        (
            {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}]},
            "number > 0, ≤ 1 or null",
        ),
        ({"enum": ["a", "b"]}, "`a`, `b`"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"$ref": "#/$defs/Part"}, "section"),
    ],
)
def test_types_of_keys_are_words(load_script, node, kind):
    definitions = {"Part": {"type": "object", "properties": {}}}
    assert load_script("docs/make_reference.py").kind_of(node, definitions) == kind
