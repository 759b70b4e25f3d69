"""Write Markdown tables whose cells cannot break the table or inject markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"[\\`|]|<(?=[A-Za-z/!?])|\](?=\()")
"""What ends a cell, starts a code span, an HTML tag, or a link."""


class Markdown(str):
    """Text that is Markdown already and must not be escaped again."""

    __slots__ = ()


def escape(text: str) -> Markdown:
    """Return plain text as Markdown on one line; text that is Markdown already is returned unchanged."""
    if isinstance(text, Markdown):
        return text
    return Markdown(_SPECIAL.sub(r"\\\g<0>", " ".join(text.split())))


def code(text: str) -> Markdown:
    """Return text as a code span that is safe in a table, whatever backticks and pipes it contains."""
    # An empty span would be the opening of another.
    text = " ".join(text.split()).replace("|", r"\|") or " "
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return Markdown(f"{fence}{blank}{text}{blank}{fence}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = ()) -> str:
    """Return a Markdown table without a final line break; every cell is escaped, `numeric` columns align right."""
    rule = ["--:" if is_number else "---" for is_number in numeric] or ["---"] * len(header)
    lines = [f"| {' | '.join(map(escape, row))} |" for row in [header, *rows]]
    lines.insert(1, f"|{'|'.join(rule)}|")
    return "\n".join(lines)
