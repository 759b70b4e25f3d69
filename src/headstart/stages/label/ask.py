"""Label the rows of a sheet in the terminal, one key per row."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from headstart.core.errors import RecipeError
from headstart.stages.label import sheet
from headstart.stages.label.model import Labeler
from headstart.stages.label.sheet import Chosen, Sheet

_KEYS = 9
"""Labels that can be chosen by a single key."""
_WIDTH = 100
_UNDO, _SKIP, _QUIT, _ACCEPT = "u", "s", "q", ""
Ask = Callable[[], str]
"""Returns what the user typed: one key, or a line where there are more labels than keys."""


def run(path: Path, model: Path, screen: TextIO = sys.stderr) -> dict[str, Any]:
    """Ask for the label of each row of a sheet that has none. Every answer is saved at once.

    Args:
        path: a sheet in CSV, which `headstart label choose` wrote.
        model: the model that the rows were chosen with.
        screen: where the rows are shown.
    """
    if sheet.require_suffix(path) != ".csv":
        raise RecipeError(
            f"{path} is labeled in Label Studio", do="Choose rows with `--to FILE.csv` to label them here"
        )
    labeler = Labeler.open(model)
    rows = sheet.read(path, labeler.columns, labeler.label, labeler.separator)
    labels = [str(label) for label in labeler.task.labels]
    with _keys(len(labels) <= _KEYS) as ask:
        Session(path, rows, labels, ask, screen).run()
    done = sum(bool(row.labels) for row in rows.rows)
    return {"output": str(path), "labeled": done, "rows": len(rows.rows)}


class Session:
    """The rows of a sheet, asked for one after the other; an answer can be undone."""

    def __init__(self, path: Path, rows: Sheet, labels: Sequence[str], ask: Ask, screen: TextIO) -> None:
        """Start with the rows that have no label yet."""
        self.path, self.sheet, self.labels, self.ask, self.screen = path, rows, labels, ask, screen
        self._waiting = [row for row in rows.rows if not row.labels]
        self._position = 0

    def run(self) -> None:
        """Ask until all rows are answered or skipped, or the user stops."""
        while self._position < len(self._waiting):
            row = self._waiting[self._position]
            self._show(row)
            if not self._answer(row):
                break
        self._say("")

    def _answer(self, row: Chosen) -> bool:
        """Take what the user types until the row is done; False to stop."""
        marked: list[str] = []
        while True:
            typed = self.ask()
            if typed in (_QUIT, "\x04"):
                return False
            if typed == _SKIP:
                self._position += 1
                return True
            if typed == _UNDO:
                if self._position:
                    self._position -= 1
                    self._save(self._waiting[self._position], [])
                return True
            if self.sheet.separator is None and (label := self._named(typed)) is not None:
                self._save(row, [label])
            elif self.sheet.separator is not None and typed == _ACCEPT:
                self._save(row, marked or row.prediction)
            elif self.sheet.separator is not None and (label := self._named(typed)) is not None:
                marked = [one for one in marked if one != label] if label in marked else [*marked, label]
                self._say(f"  {'; '.join(marked) or 'nothing'}  (Enter to accept)")
                continue
            elif self.sheet.separator is None and typed == _ACCEPT and row.prediction:
                self._save(row, row.prediction)
            else:
                self._say(f"  {typed!r} is none of the keys above")
                continue
            self._position += 1
            return True

    def _named(self, typed: str) -> str | None:
        if typed.isdigit() and 1 <= int(typed) <= len(self.labels):
            return self.labels[int(typed) - 1]
        return typed if typed in self.labels else None

    def _save(self, row: Chosen, labels: list[str]) -> None:
        row.labels = labels
        self.sheet.write(self.path)

    def _show(self, row: Chosen) -> None:
        width = min(_WIDTH, shutil.get_terminal_size().columns)
        self._say(f"\n[{self._position + 1} of {len(self._waiting)}]")
        for text in row.texts.values():
            # Control characters could move the cursor or change the terminal.
            printable = "".join(char if char.isprintable() else " " for char in text)
            self._say(textwrap.fill(printable, width) + "\n")
        keys = "  ".join(f"{i} {label}" for i, label in enumerate(self.labels, start=1))
        self._say(textwrap.fill(keys, width))
        guess = f"Enter {'; '.join(row.prediction)} ({row.probability:.0%})  " if row.prediction else ""
        self._say(f"{guess}{_UNDO} undo  {_SKIP} skip  {_QUIT} quit")

    def _say(self, text: str) -> None:
        self.screen.write(text + "\n")
        self.screen.flush()


@contextmanager
def _keys(single: bool) -> Iterator[Ask]:
    """Read single keys from a terminal; lines if there are more labels than keys, or if the input is a file."""
    if not single or not sys.stdin.isatty():
        yield _line
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield _key
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _key() -> str:
    key = sys.stdin.read(1)
    return "" if key in ("\n", "\r") else key or _QUIT


def _line() -> str:
    line = sys.stdin.readline()
    return line.strip() if line else _QUIT
