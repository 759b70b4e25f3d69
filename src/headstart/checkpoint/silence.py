"""Keeps the progress bars and load reports of the libraries off the screen; Headstart reports what matters itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def silenced() -> Iterator[None]:
    """Load or save without transformers' bars, its report of new and unused weights, and its deprecation warnings."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    verbosity, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if had_bars:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()
