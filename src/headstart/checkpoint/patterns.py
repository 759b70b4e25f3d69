"""Patterns of module names in an adapter's config, which peft matches against every module of a network."""

from __future__ import annotations

import re
import re._constants as opcodes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

KEYS = ("target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "rank_pattern", "alpha_pattern")
"""The settings of peft whose values, or whose keys, are regular expressions."""
_LONGEST, _REPETITIONS = 1_000, 4
_REPEATS = {opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT}


def texts(value: Any) -> Iterator[str]:
    """Yield the patterns in a setting: a string, a list of strings, or the keys of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        yield from (pattern for pattern in value if isinstance(pattern, str))


@lru_cache(maxsize=1_024)
def is_simple(pattern: str) -> bool:
    """True if a pattern is matched in reasonable time: few repetitions, and none inside another.

    Python's engine tries every way to divide a text between repetitions, so `(a+)+` takes exponential time.
    """
    if len(pattern) > _LONGEST:
        return False
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        # peft reports it when it compiles the pattern.
        return True
    repetitions = list(_repetitions(parsed))
    return len(repetitions) <= _REPETITIONS and not any(
        inner for body in repetitions for inner in (*_repetitions(body), *_branches(body))
    )


def _repetitions(parsed: Any) -> Iterator[Any]:
    """Yield the bodies of the repetitions without a small bound, at any depth."""
    for node in _nodes(parsed):
        if node[0] in _REPEATS and (node[1][1] is opcodes.MAXREPEAT or node[1][1] > 16):
            yield node[1][2]


def _branches(parsed: Any) -> Iterator[Any]:
    return (node for node in _nodes(parsed) if node[0] is opcodes.BRANCH)


def _nodes(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes of a parsed pattern, those inside others too."""
    for node in parsed:
        yield node
        pending = [node[1]]
        while pending:
            value = pending.pop()
            if isinstance(value, parser.SubPattern):
                yield from _nodes(value)
            elif isinstance(value, tuple | list):
                pending.extend(value)
