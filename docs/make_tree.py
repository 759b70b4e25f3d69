"""Write docs/tree.md, one line per file and folder: `python docs/make_tree.py`.

A Python file is described by the first line of its docstring, a package by that of its `__init__.py`, everything
else by the table below.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tree.md"
HEADER = """\
# The tree

<!-- Written by docs/make_tree.py; do not edit. -->

One line per file and folder. Imports run one way: `cli → verbs → studies → stages → noun packages → checkpoint → core`.
"""
OPEN = ("docs", "recipes", "src/headstart", "tests")
"""Folders whose content is listed; below src/headstart everything is."""
DESCRIPTIONS = {
    ".ci": "continuous integration: `.ci/run` does everything on a clean machine, `.ci/release` what is published",
    ".dockerignore": "what the image is built from",
    ".gitattributes": "which files git treats as binary",
    ".github": "the same jobs on a public forge, publishing, forms for issues and changes",
    ".gitignore": "what runs and builds leave behind",
    ".pre-commit-config.yaml": "the checks before a commit",
    "CHANGELOG.md": "what changed for users",
    "CODE_OF_CONDUCT.md": "how we treat each other, and what happens otherwise",
    "CITATION.cff": "how to cite",
    "CONTRIBUTING.md": "how to add an objective, start to finish, on one page",
    "Dockerfile": "an image with Headstart and its recipes",
    "LICENSE": "Apache-2.0",
    "Makefile": "every habit of the repository, one line each",
    "README.md": "what Headstart is, the quickstart, where to read on",
    "SECURITY.md": "what is promised, and how to report",
    "benchmarks": "speed measured side by side; `headstart bench` runs them",
    "docs": "documentation",
    "docs/adapt-first.md": "`adapt_first` in a fine-tuning recipe: pre-training on your text before fine-tuning",
    "docs/advise.md": "`headstart advise`: the methods, the rule by which it stops, what it writes",
    "docs/assets": "logo, social card and style sheet of the site",
    "docs/clusters.md": "`headstart launch`: Slurm, Kubernetes, SkyPilot and Ray; several processes and machines",
    "docs/coming-from.md": "seven other libraries: their way and Headstart's, side by side",
    "docs/course": "five pages of concepts with file, command, picture and verdict; exercises with checks; lessons",
    "docs/decisions.md": "what was chosen over what, and why",
    "docs/examples": "short scripts that keep transformers' own Trainer",
    "docs/first-gpu-run.md": "what was tested without a GPU, what was not, and five checks to run on one",
    "docs/governance.md": "who decides, and how",
    "docs/help.md": "the command line's help (generated)",
    "docs/index.md": "the first page of the site",
    "docs/lab-notes.md": "what was tried and measured, above all what did not help",
    "docs/licenses.md": "the license of every dependency (generated)",
    "docs/navigation.yaml": "which page of the site is where",
    "docs/peft.md": "adapters through peft: networks, rates, how to load them",
    "docs/platforms.md": "Windows and macOS: what works and what does not",
    "docs/probe.md": "`headstart probe`: what a network knows, beside the same network untrained",
    "docs/reference": "every recipe key, every method, the Python interface (generated)",
    "docs/results": "measured results, each with the command that repeats it",
    "docs/scaling.md": "what grows with what, from a laptop to a cluster",
    "docs/serving.md": "many tasks on one body over HTTP: routes, limits, keys",
    "docs/hub.md": "models and data sets by name: the Hub, packages, folders; commits, cache, publishing",
    "docs/stores.md": "text, token shards and checkpoints in object stores: URLs, pins, failures, credentials",
    "docs/multitask.md": "several tasks in one run",
    "docs/studies.md": "how to write, run and read a study",
    "docs/support.md": "which objective, task and adaptation fits which family (generated)",
    "docs/tree.md": "this page (generated)",
    "docs/tutorials": "seven runs from the first command to a result; a test follows each",
    "docs/versions.md": "what a version promises, deprecation, how a release is made",
    "pyproject.toml": "package, extras, and the settings of all tools",
    "recipes": "complete runs, one YAML file each",
    "recipes/README.md": "which data the recipes read",
    "recipes/causal-detour": "an encoder continued on a domain: first as a causal LM, then with masked LM",
    "recipes/corpus": "Wikipedia and novels as one documented corpus",
    "recipes/minilm": "tasks on a ready checkpoint, all-MiniLM-L6-v2, and an index of Wikipedia",
    "recipes/objectives": "small recipes: UL2's mixture, multitask masked LM, and the model of the benchmarks",
    "recipes/quickstart": "ten minutes on a laptop, with the text that it needs",
    "recipes/smollm2": "a ready decoder, SmolLM2-135M-Instruct: prompts, and instruction tuning",
    "recipes/tinybert": "TinyBERT's two stages: general text, then a task, with a student of half the depth",
    "recipes/tutorials": "what the tutorials need beside the quickstart: a ready checkpoint, adapted to a text",
    "recipes/ulmfit": "ULMFiT's three stages: general text, target text, labels",
    "recipes/wiki-mini": "a mini encoder on Wikipedia and novels, and seventeen tasks",
    "recipes/wiki-t5": "a mini T5 on the same text, and tasks whose answer is generated",
    "src": "the source",
    "src/headstart": "the package",
    "src/headstart/core/pages/base.html.j2": "the frame of every HTML page",
    "src/headstart/core/pages/page.css": "the style sheet of pages",
    "src/headstart/core/pages/parts.html.j2": "macros for tables and the like",
    "src/headstart/core/pages/picture.css": "colors and lines of pictures, light and dark",
    "src/headstart/core/pages/sections.html.j2": "the sections of a page: sentences, charts, tables, rows of the data",
    "src/headstart/corpus/datasheet/datasheet.html.j2": "the page of a corpus",
    "src/headstart/evaluation/report/page.html.j2": "the page of errors",
    "src/headstart/stages/init/data.html.j2": "the page about labeled data",
    "src/headstart/stages/probe/bias_templates.yaml": "the sentences of the probe `bias`",
    "src/headstart/stages/probe/page.html.j2": "the page of `headstart probe`",
    "src/headstart/stages/serve/page.html.j2": "the page on which each task can be tried",
    "src/headstart/studies/advise/advice.html.j2": "the page of `headstart advise`",
    "src/headstart/studies/render/report.html.j2": "the page of a study",
    "src/headstart/stages/plan/scaling_table.json": "measured losses by size, vocabulary and tokens",
    "studies": "grids of runs that answer one question, one YAML file each",
    "tests": "tests",
    "tests/contracts": "one suite for every registered objective, task, adaptation, metric and baseline",
    "tests/attacks": "hostile recipes, overrides and checkpoints",
    "tests/device": "training, evaluation and generation on a stand-in device that is not the CPU",
    "tests/faults": "kills, full disks, bad numbers, torn files",
    "tests/repo": "the repository itself: recipes, imports, pages, style",
    "tests/runs": "end to end, as a user runs it",
    "tests/unit": "a mirror of src",
}
UNLISTED = {"__init__.py", "py.typed"}


def files() -> list[str]:
    """Return the repository's files, without those that git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def render(names: Iterable[str]) -> str:
    """Return the page for a list of files."""
    lines = [line for entry in entries(names) for line in [_line(entry)]]
    return f"{HEADER}\n```\n" + "\n".join(lines) + "\n```\n"


def entries(names: Iterable[str]) -> list[str]:
    """Return the paths that the page lists, folders first where they hold listed files, in reading order."""
    listed: set[str] = set()
    for name in names:
        path = PurePosixPath(name)
        if path.name in UNLISTED:
            path = path.parent
        for level in (path, *path.parents):
            parent = str(level.parent)
            if str(level) != "." and (parent in (".", *OPEN) or parent.startswith("src/headstart/")):
                listed.add(str(level))
    return sorted(listed - {"src"} | {"src/headstart"}, key=_reading_order)


def _reading_order(path: str) -> list[tuple[bool, str]]:
    parts = PurePosixPath(path).parts
    return [(not (ROOT.joinpath(*parts[: depth + 1])).is_dir(), part) for depth, part in enumerate(parts)]


def _line(path: str) -> str:
    parts = PurePosixPath(path).parts
    depth = 0 if path == "src/headstart" else len(parts) - 1 - (parts[0] == "src")
    folder = (ROOT / path).is_dir()
    name = ("src/headstart" if path == "src/headstart" else parts[-1]) + "/" * folder
    return f"{'  ' * depth}{name:<{28 - 2 * depth}}  {describe(path)}".rstrip()


def describe(path: str) -> str:
    """Return what a file or folder is for, or an empty text where nothing says it."""
    if path in DESCRIPTIONS:
        return DESCRIPTIONS[path]
    source = ROOT / path / "__init__.py" if (ROOT / path).is_dir() else ROOT / path
    if source.suffix != ".py" or not source.is_file():
        return ""
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(render(files()), encoding="utf-8")
    print(f"wrote {PAGE}")
