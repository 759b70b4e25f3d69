"""What a reader relies on: short files, no drawers, every public name documented and annotated."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "tests" / "attacks" / "fuzz" / "found"
"""Inputs that fuzzing found; they are not text."""
SOURCE = ROOT / "src" / "headstart"
MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST = 600
DRAWERS = {"utils", "util", "helpers", "helper", "misc", "common", "tools"}

TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".cff", ".html", ".css", ""}
# Where and by whom a file was written is nobody's business. The patterns are spelt so as not to match themselves.
LEAKS = {
    "a path of one machine": re.compile(r"(?<![\w.~$}])/(?:work|root|home|tmp|Users)/\w"),
    "talk of how it was written": re.compile(r"(?<!scope=\")\bsess(?:ion)s?\b(?!\.intra_op)"),
}


def public_definitions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each public class, function and method with its dotted name; magic methods are left out."""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from public_definitions(child, f"{prefix}{child.name}.")


def faults(tree: ast.Module) -> Iterator[str]:
    """Yield one line for each public name that lacks a docstring or an annotation."""
    for name, node in public_definitions(tree):
        if _is_overload_or_override(node):
            continue
        if not ast.get_docstring(node):
            yield f"{name} has no docstring"
        if isinstance(node, ast.ClassDef):
            continue
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in filter(None, every):
            if argument.annotation is None and argument.arg not in ("self", "cls"):
                yield f"{name}: {argument.arg} has no annotation"
        if node.returns is None:
            yield f"{name} has no return annotation"


def _is_overload_or_override(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(decorator).rpartition(".")[2] in ("overload", "override") for decorator in decorators)


def test_public_names_are_documented_and_annotated():
    assert MODULES
    found = [
        f"{path.relative_to(SOURCE)}: {fault}"
        for path in MODULES
        for fault in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("snippet", "fault"),
    [
        ("def f() -> None: ...", "f has no docstring"),
        ("class C:\n  'Doc.'\n  def f(self) -> None: ...", "C.f has no docstring"),
        ("def f(x) -> None:\n  'Doc.'", "f: x has no annotation"),
        ("def f(*, x) -> None:\n  'Doc.'", "f: x has no annotation"),
        ("def f(x: int):\n  'Doc.'", "f has no return annotation"),
    ],
)
def test_a_fault_is_found(snippet, fault):
    assert list(faults(ast.parse(snippet))) == [fault]


def test_no_file_is_too_long():
    lengths = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8").count("\n") for path in MODULES}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST}


def test_no_drawers():
    places = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*") if path.suffix in (".py", "")}
    assert not [name for name, path in places.items() if path.stem in DRAWERS], "a helper lives with the noun it serves"


def test_nothing_leaks_into_the_text():
    files = [path for path in tracked() if FOUND not in path.parents and FOUND not in path.parent.parents]
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for what, pattern in LEAKS.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "leaks"),
    [
        ("see /" + "work/main/x.py", True),
        ('open("/' + 'root/a")', True),
        ("in this sess" + "ion", True),
        ('@pytest.fixture(scope="sess' + 'ion")', False),
        ("docs/home/page.md and obsession", False),
        ("https://example.org/home/page", False),
    ],
)
def test_leaks_are_told_from_the_innocent(line, leaks):
    assert any(pattern.search(line) for pattern in LEAKS.values()) is leaks


def tracked() -> list[Path]:
    """The text files that git tracks or would track; data and the licence are not our words."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git here; un-skipped in a clone")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    paths = [ROOT / name for name in names if name]
    return [p for p in paths if p.is_file() and p.suffix in TEXT and p.name != "LICENSE" and "data" not in p.parts]
