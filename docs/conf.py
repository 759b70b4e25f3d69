"""Settings of the site for Sphinx: `make site`. The pages are plain CommonMark; only this file knows the generator."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "Headstart"
author = copyright = "The Headstart authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["results/**/tables"]
myst_heading_anchors = 4  # links such as decisions.md#usearch-for-search, as on a forge
myst_links_external_new_tab = False

html_theme = "furo"
html_title = "Headstart"
html_logo = html_favicon = "assets/logo.svg"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = html_use_index = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False}
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"


def table_of_contents(navigation: dict[str, list[Any]]) -> dict[str, list[tuple[str, list[str]]]]:
    """Return, for each page with pages below it, their captions and lists; the first page has the parts."""
    tables: dict[str, list[tuple[str, list[str]]]] = {"index": []}
    for part, entries in navigation.items():
        pages = []
        for entry in entries:
            page, below = next(iter(entry.items())) if isinstance(entry, dict) else (entry, [])
            pages.append(page.removesuffix(".md"))
            if below:
                tables[pages[-1]] = [("", [name.removesuffix(".md") for name in below])]
        tables["index"].append((part, [page for page in pages if page != "index"]))
    return tables


TABLES = table_of_contents(yaml.safe_load((DOCS / "navigation.yaml").read_text(encoding="utf-8")))


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the navigation to a page, so that no page contains a directive of the generator."""
    for caption, pages in TABLES.get(name, []):
        options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
        lines = ["```{toctree}", *options, "", *(f"/{page}" for page in pages), "```"]
        source[0] += "\n\n" + "\n".join(lines) + "\n"


def visit_file(self: Any, node: nodes.Element) -> None:
    """Link to a file that is no page, such as a report or a table, without asking the browser to store it."""
    if "filename" in node:
        address = posixpath.join(self.builder.dlpath, quote(node["filename"]))
        self.body.append(self.starttag(node, "a", "", CLASS="reference internal", href=address))
        self.context.append("</a>")
    else:
        self.context.append("")


def depart_file(self: Any, node: nodes.Element) -> None:
    """Close what `visit_file` opened."""
    self.body.append(self.context.pop())


def improve_access(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let the keyboard scroll wide code and tables, and give the captions of the navigation a level."""
    body = context.get("body", "").replace("<pre>", '<pre tabindex="0">')
    context["body"] = re.sub(r'<div class="table-wrapper', r'<div tabindex="0" class="table-wrapper', body)
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions above."""
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", improve_access, priority=900)  # after the theme's own
    app.add_node(addnodes.download_reference, override=True, html=(visit_file, depart_file))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
