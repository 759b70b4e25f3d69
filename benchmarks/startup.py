"""Start-up time of the command line: `headstart --help` and `headstart list`."""

from __future__ import annotations

import subprocess
import sys
import time

from side_by_side import arguments, in_turns, report


def seconds(*words: str) -> float:
    """Return the wall-clock time of one command in seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "headstart", *words], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure both against their limits and print one line of JSON for each."""
    options = arguments(__doc__ or "", repetitions=9)
    found = in_turns(options.repetitions, help=lambda: seconds("--help"), list=lambda: seconds("list"))
    for name, limit in (("help", 0.3), ("list", 0.5)):
        report(f"start-up: {name}, against its limit", found[name], [limit], 1.0, "s", less_is_better=True)


if __name__ == "__main__":
    main()
