"""Save pictures of a page of `headstart probe` as SVG files, for docs/results/inside.md.

    python docs/results/inside_pictures.py runs/minilm-inside/probe.html
    python docs/results/inside_pictures.py runs/minilm-inside/probe.html 'tags, accuracy' docs/results/inside/tags.svg

Without a title, prints the titles of the page's pictures. With one, saves the first picture whose title contains it.
"""

from __future__ import annotations

import argparse
import re
from html import unescape
from pathlib import Path

from markupsafe import Markup

from headstart.core import artifact
from headstart.core.pages.charts import standalone

_PICTURE = re.compile(r'<svg (?:[^>]*)aria-label="([^"]*)".*?</svg>', re.DOTALL)


def main() -> None:
    """List the pictures of a page, or save one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("title", nargs="?", help="a part of the picture's title")
    parser.add_argument("file", nargs="?", type=Path, help="the SVG file to write")
    options = parser.parse_args()
    pictures = [(unescape(m[1]), m[0]) for m in _PICTURE.finditer(options.page.read_text(encoding="utf-8"))]
    if options.title is None or options.file is None:
        print(*dict.fromkeys(title for title, _ in pictures), sep="\n")
        return
    picture = next((svg for title, svg in pictures if options.title in title), None)
    if picture is None:
        raise SystemExit(f"{options.page} has no picture {options.title!r}")
    options.file.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_whole(options.file, standalone(Markup(picture)))


if __name__ == "__main__":
    main()
