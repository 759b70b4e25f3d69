"""Every regular expression of the package runs in linear time, whatever text it reads.

The patterns are found in the source: the argument of each call that takes one is evaluated in its module. A pattern
that is computed elsewhere has an entry in `_computed`; a call without either fails the test.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src"
RE_CALLS = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer", "template"}
NATIVE_CALLS = {"regexp", "regexp_count", "regexp_extract", "regexp_extract_all", "regexp_replace", "regexp_split"}
"""Functions of Daft, whose second argument is a pattern for the Rust crate `regex`."""
KEYWORDS = {"token_pattern": "python", "pattern_regex": "native"}
FLOOR_SECONDS, MAX_SECONDS, MAX_RATIO = 0.05, 2.0, 2.6
SCREEN_SECONDS = 0.5
"""Longest time for 64 kB. A linear pattern that needs more would not read a megabyte within the limit."""
SMALL, LARGE = 1 << 16, 1 << 20


@dataclass(frozen=True)
class Pattern:
    """A pattern, the engine that runs it, and how the package applies it."""

    engine: str
    text: str | bytes
    flags: int = 0
    use: str = "search"


def _source(expression: str) -> str:
    """Return an expression in the spelling that `ast.unparse` has for it."""
    return ast.unparse(ast.parse(expression, mode="eval"))


def _computed() -> dict[tuple[str, str], Callable[[], list[Pattern]]]:
    """Return the patterns of each argument that the source computes, by its module and its expression."""

    def module(name: str) -> Any:
        return importlib.import_module(f"headstart.{name}")

    def targets() -> list[Pattern]:
        found = module("adaptation.targets")
        return [Pattern("python", found.pattern_of(target), use="fullmatch") for target in [*found.PARTS, "dense.x"]]

    return {
        ("training.devices", "pattern"): lambda: [
            Pattern("python", text, re.IGNORECASE) for text, _ in module("training.devices")._PEAKS
        ],
        ("corpus.clean.personal", "_PATTERNS[kind].gate"): lambda: [
            Pattern("native", definition.gate) for definition in module("corpus.clean.personal")._PATTERNS.values()
        ],
        ("corpus.clean.unicode", "self._gate"): lambda: [
            Pattern(engine, text)
            for engine in ("native", "python")
            for text in (module("corpus.clean.unicode").USUAL, module("corpus.clean.unicode")._THOROUGH)
        ],
        ("corpus.clean.unicode", "pattern"): lambda: [
            Pattern("native", text) for text, _ in module("corpus.clean.unicode").WHITESPACE
        ],
        ("corpus.clean.c4", _source(r"rf'(?m)^ *(?:\S+ +){{0,{few}}}\S+ *$\n?'")): lambda: [
            Pattern("native", rf"(?m)^ *(?:\S+ +){{0,{few}}}\S+ *$\n?") for few in (0, 3, 48)
        ],
        ("corpus.clean.counts", _source(r"rf'(?i-u:\b{word}\b)'")): lambda: [
            Pattern("native", rf"(?i-u:\b{word}\b)") for word in module("corpus.clean.counts").STOP_WORDS
        ],
        ("adaptation.targets", "pattern_of(target)"): targets,
        ("core.recipes.variables", "start + re.escape(value) + end"): lambda: [
            Pattern("python", module("core.recipes.variables")._pattern(value).pattern)
            for value in ("a", "/data", "a.b-c 1")
        ],
        ("tokens.tokenizer", _source("rf\"[^\\s{re.escape(''.join(sorted(alphabet)))}]+\"")): lambda: [
            Pattern("python", rf"[^\s{re.escape('-]^abc.')}]+")
        ],
    }


def _calls(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr, ast.Call]]:
    """Yield (engine, use, pattern, call) for each call that takes a pattern."""
    functions = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("re", "regex")
        for alias in node.names
    }
    assert not functions, f"import the module `re`, so that the patterns can be found: {functions}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        if owner in ("re", "regex") and name in RE_CALLS:
            yield "python", name, node.args[0], node
        elif name in NATIVE_CALLS:
            yield "native", "search", node.args[1], node
        elif name == "Regex":
            yield "tokenizers", "search", node.args[0], node
        elif owner == "pc" and name.endswith("_regex"):
            yield "arrow", "search", [*node.args, *(k.value for k in node.keywords if k.arg == "pattern")][1], node
        for keyword in node.keywords:
            if keyword.arg in KEYWORDS:
                yield KEYWORDS[keyword.arg], "search", keyword.value, node


def _uses(tree: ast.Module, call: ast.Call) -> set[str]:
    """Return the methods that a module calls on the name to which it assigns a compiled pattern."""
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }


def _flags(call: ast.Call, namespace: dict[str, Any]) -> int:
    for node in [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]:
        if ast.unparse(node).startswith("re."):
            return int(eval(ast.unparse(node), namespace))
    return 0


@cache
def patterns() -> dict[Pattern, str]:
    """Return all patterns of the package, with the place of each."""
    computed, found = _computed(), dict[Pattern, str]()
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not re.search(r"\bre\b|regex|Regex|token_pattern", source):
            continue
        tree = ast.parse(source)
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for engine, use, node, call in _calls(tree):
            place, expression = f"{path.relative_to(SOURCE)}:{call.lineno}", ast.unparse(node)
            entry = computed.get((name.removeprefix("headstart."), expression))
            if entry is not None:
                found |= dict.fromkeys(entry(), place)
                continue
            namespace = vars(importlib.import_module(name.removesuffix(".__init__")))
            try:
                texts = [eval(ast.unparse(argument), namespace) for argument in _arguments(tree, node)]
            except NameError as error:
                pytest.fail(f"{place}: {error}. Add the values of `{expression}` to `_computed` in this test.")
            if use == "compile":
                uses = _uses(tree, call)
                use = next(iter(uses)) if uses in ({"match"}, {"fullmatch"}) else "search"
            use = use if use in ("match", "fullmatch") else "search"
            found |= {Pattern(engine, text, _flags(call, namespace), use): place for text in texts}
    return found


def _arguments(tree: ast.Module, node: ast.expr) -> list[ast.expr]:
    """Return the node of a pattern, or the arguments of a function's calls if the pattern is its first parameter."""
    for function in (child for child in ast.walk(tree) if isinstance(child, ast.FunctionDef)):
        parameters = [parameter.arg for parameter in function.args.args]
        if any(child is node for child in ast.walk(function)) and isinstance(node, ast.Name) and node.id in parameters:
            calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call)]
            return [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == function.name]
    return [node]


def _literals(pattern: str) -> list[str]:
    """Return the literal parts of a pattern: runs of characters that have no special meaning."""
    plain = re.sub(r"\(\?[^:)]*:|\\[pP]\{\w+\}|\[[^\]]*\]|\{\d+,?\d*\}|\\[A-Za-z]", "\0", pattern)
    plain = re.sub(r"\\(.)", r"\1", plain)
    return list(dict.fromkeys(part for part in re.split(r"[\0()|*+?^$.]+", plain) if part.strip()))[:12]


FAMILIES: dict[str, str] = {
    "one letter": "a", "one digit": "1", "spaces": " ", "tabs": "\t", "newlines": "\n", "carriage returns": "\r\n",
    "at signs": "@", "dots": ".", "dashes": "-", "commas": ",", "underscores": "_", "quotes": "\"'", "stops": "?!",
    "opening brackets": "([{<", "closing brackets": ")]}>", "brackets in turn": "()[]", "backslashes": "\\",
    "backticks": "`", "markers": "▁", "slashes": "/", "percent signs": "%", "hashes": "#", "equals signs": "=",
    "addresses": "a@a.", "half an address": "a@1.1-", "labels": "a.", "numbers with dots": "1.", "hexadecimal": "a1:",
    "digits in groups": "1234 ", "phone": "+1 (", "private keys": "-----BEGIN PRIVATE KEY-----",
    "ends of keys": "-----END ", "tokens": "-eyJ", "long tokens": "eyJaaaaaaaa.", "half-open tags": "<a ",
    "half-open entities": "&#1", "placeholders": "${a:-", "wide letters": "é漢", "emoji": "👩‍👩‍👧",
    "combining": "e\u0301",
    "words": "the of ", "lines": "a b c\n", "lines with a blank": "a \n", "sentences": "A. b! ", "ellipses": "...",
    "nulls": "\0", "mojibake": "Ã©", "wide stops": "。)", "javascript": "javascript ", "keys and values": "charset = ",
    "carets": "a>b ", "mixed": "aA1 .-@_(\n",
}  # fmt: skip
FAMILIES_AFTER = {"1": "digits", " ": "spaces", "A": "letters"}


ENDS = ("\x01", "", " ", "\n")
"""What follows the repeated part, and may spoil a match of what is before it."""


def _families(pattern: Pattern) -> dict[str, tuple[str, str]]:
    """Return the start and the repeated part of each family, with those that the literal parts of the pattern give."""
    text = pattern.text if isinstance(pattern.text, str) else pattern.text.decode("latin-1")
    families = {name: ("", unit) for name, unit in FAMILIES.items()}
    for part in _literals(text):
        families |= {f"{part!r}": ("", part), f"{part!r} and a space": ("", f"{part} ")}
        families |= {f"{part!r}, then {FAMILIES_AFTER[unit]}": (part, unit) for unit in FAMILIES_AFTER}
    return families


@lru_cache(maxsize=1000)
def _filled(start: str, unit: str, end: str, size: int) -> str:
    repeated = unit * (size // len(unit.encode()) + 1)
    return start + repeated[: max(1, len(repeated) * size // len(repeated.encode()))] + end


def _runner(pattern: Pattern) -> Callable[[str], Any]:
    """Return a function that applies a pattern to a text, as often as it can match."""
    if pattern.engine == "python":
        compiled = re.compile(pattern.text, pattern.flags)
        apply = {"match": compiled.match, "fullmatch": compiled.fullmatch}.get(
            pattern.use, lambda text: sum(1 for _ in compiled.finditer(text))
        )
        return apply if isinstance(pattern.text, str) else lambda text: apply(text.encode())
    if pattern.engine == "tokenizers":
        from tokenizers import Regex, normalizers

        return normalizers.Replace(Regex(pattern.text), "x").normalize_str
    if pattern.engine == "native":
        import pyarrow as pa
        from daft import col
        from daft.functions import regexp_replace

        from headstart.corpus.parts.engine import evaluate

        expression = {"text": regexp_replace(col("text"), pattern.text, "x")}
        return lambda text: evaluate(pa.table({"text": [text]}), expression)
    import pyarrow.compute as pc

    return lambda text: pc.replace_substring_regex(text, pattern.text, "x")


def _seconds(run: Callable[[str], Any], text: str, limit: float = 2 * MAX_SECONDS) -> float:
    """Return how long a pattern takes on a text: the shortest of up to three runs, as the machine does other work."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        try:
            with _time_limit(limit):
                run(text)
        except TimeoutError:
            return float("inf")
        best = min(best, time.process_time() - start)
        if best < FLOOR_SECONDS:
            break
    return best


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError after some seconds of processor time; `re` checks for signals while it matches."""

    def stop(*_: object) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


@dataclass(frozen=True)
class Screened:
    """The slowest text of a family."""

    seconds: float
    """For 64 kB."""
    name: str
    parts: tuple[str, str, str]
    fault: str = ""


def _screen(pattern: Pattern) -> Iterator[Screened]:
    """Yield each family with its slowest end."""
    run = _runner(pattern)
    ends = ENDS if pattern.engine == "python" else ENDS[:1]
    for name, (start, unit) in _families(pattern).items():
        small = {end: _seconds(run, _filled(start, unit, end, SMALL // 16), SCREEN_SECONDS) for end in ends}
        end = max(small, key=lambda end: small[end])
        taken, fault = small[end], ""
        before, taken = taken, _seconds(run, _filled(start, unit, end, SMALL), SCREEN_SECONDS)
        # Sixteen times the text.
        if taken > SCREEN_SECONDS or taken > max(FLOOR_SECONDS, before * MAX_RATIO**4):
            fault = f"{before * 1e3:.1f} ms, then {taken * 1e3:.0f} ms for 16 times the text ({SMALL} bytes)"
        yield Screened(taken, name, (start, unit, end), fault)


def faults_of(pattern: Pattern, slowest: int = 1) -> list[str]:
    """Return the families on which a pattern is not linear, or takes more than two seconds for a megabyte."""
    screened = list[Screened]()
    for family in _screen(pattern):
        screened.append(family)
        # Enough to see what is wrong; the others would take minutes.
        if sum(bool(other.fault) for other in screened) == 3:
            break
    faults = [f"{family.name}: {family.fault}" for family in screened if family.fault]
    run = _runner(pattern)
    for family in sorted(screened, key=lambda family: -family.seconds)[:slowest]:
        if family.fault or family.seconds * LARGE / SMALL < SCREEN_SECONDS / 2:
            continue
        half, whole = (_seconds(run, _filled(*family.parts, size)) for size in (LARGE // 2, LARGE))
        if whole > MAX_SECONDS or whole > max(SCREEN_SECONDS, half * MAX_RATIO):
            faults.append(f"{family.name}: {half:.2f} s, then {whole:.2f} s for twice the text ({LARGE} bytes)")
    return faults


def test_patterns_are_found():
    found = patterns()
    engines = {pattern.engine for pattern in found}
    assert len(found) > 60 and {"python", "native", "tokenizers"} <= engines, found
    assert len(FAMILIES) >= 35


def test_every_pattern_is_linear():
    # Other processes slow a pattern down by chance, but not twice.
    faults = [
        f"{place} {str(pattern.text)[:60]!r}: {fault}"
        for pattern, place in patterns().items()
        if faults_of(pattern)
        for fault in faults_of(pattern)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("text", [r"(a+)+b", r"\s+x", r"<[^>]*>", r"a.*b.*c", r"\w*\Z"])
def test_a_superlinear_pattern_is_noticed(text):
    assert any(family.fault for family in _screen(Pattern("python", text)))
