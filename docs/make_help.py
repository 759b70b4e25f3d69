"""Write docs/help.md from the command line itself: `python docs/make_help.py`.

The page is built from the parameters of the commands and not from a rendered screen, so that it changes only when the
command line does.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PAGE = Path(__file__).parent / "help.md"
HEADER = """\
# The command line

<!-- Written by docs/make_help.py; do not edit. -->
"""


def render(app: typer.Typer, name: str = "headstart") -> str:
    """Return the whole page: the program, then each of its commands in the order of its help."""
    return "\n".join([HEADER, *_sections(typer.main.get_command(app), name)])


def _sections(command: Any, path: str) -> Iterator[str]:
    yield _section(command, path)
    for name, child in _children(command).items():
        yield from _sections(child, f"{path} {name}")


def _section(command: Any, path: str) -> str:
    arguments = [parameter for parameter in _visible(command) if parameter.param_type_name == "argument"]
    options = [parameter for parameter in _visible(command) if parameter.param_type_name == "option"]
    children = _children(command)
    before, after = ["[OPTIONS]"] if options else [], ["COMMAND"] if children else []
    usage = " ".join([path, *before, *map(_metavar, arguments), *after])
    parts = [f"## {path}", f"```\n{usage}\n```", inspect.cleandoc(command.help or "").replace("\f", "")]
    rows = [(f"`{_metavar(argument)}`", argument) for argument in arguments]
    rows += [(f"`{_spelling(option)}`", option) for option in options]
    if rows:
        parts.append("\n".join(f"- {label}: {_help(parameter)}" for label, parameter in rows))
    if children:
        parts.append("\n".join(f"- `{path} {name}`: {_first_line(child)}" for name, child in children.items()))
    return "\n\n".join(part for part in parts if part) + "\n"


def _children(command: Any) -> dict[str, Any]:
    children = getattr(command, "commands", {})
    names = command.list_commands(None) if children else []  # in the order of `--help`
    return {name: children[name] for name in names if not children[name].hidden}


def _visible(command: Any) -> list[Any]:
    shells_own = {"install_completion", "show_completion"}
    return [p for p in command.params if not getattr(p, "hidden", False) and p.name not in shells_own]


def _metavar(argument: Any) -> str:
    shown = argument.metavar or argument.name.upper()
    shown += "..." if argument.nargs == -1 and not shown.endswith(("...", "…", "]")) else ""
    return shown if argument.required or shown.startswith("[") else f"[{shown}]"


def _spelling(option: Any) -> str:
    return " / ".join([", ".join(option.opts), *option.secondary_opts])


def _help(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = parameter.default
    if callable(default) or default in (None, False, (), []) or parameter.required:
        return text
    return f"{text} Default: `{getattr(default, 'value', default)}`."


def _first_line(command: Any) -> str:
    return inspect.cleandoc(command.help or "").partition("\n")[0]


if __name__ == "__main__":
    from headstart.cli import app

    PAGE.write_text(render(app), encoding="utf-8")
    print(f"wrote {PAGE}")
