"""Generate hostile recipes and overrides: 200 of them, the same ones every time, one function per family.

Every attack must end like any mistake of a user: exit code 2 and a message that says what is wrong and what to do.
"""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

COUNT = 200
CANARY = "canary"
"""The file that an attack creates if anything in a recipe is executed; `@CANARY@` in an attack is its path."""
SECRET = "s3cr3t/0f-the-machine"
"""The value of the variable that some recipes use; no message may show it."""
VARIABLE = "HEADSTART_TEST_SECRET"

RECIPES = {
    "pretrain": {
        "output": "runs/x",
        "corpus": {"files": ["a.txt"]},
        "backbone": {"family": "encoder", "kind": "bert", "size": "tiny"},
        "objective": {"name": "masked_lm"},
    },
    "finetune": {
        "output": "runs/y",
        "model": "runs/x",
        "task": {"kind": "classify", "label": "topic"},
        "data": {"train": "a.csv", "validation": 20, "test": "b.csv"},
        "adaptation": {"name": "full"},
    },
    "corpus": {"output": "runs/c", "sources": [{"name": "a", "files": ["a.txt"]}]},
    "index": {"output": "runs/i", "model": "runs/x", "corpus": {"files": ["a.txt"]}, "passages": {}},
    "study": {
        "question": "Does it help?",
        "output": "runs/s",
        "base": {"finetune": {"model": "runs/x", "task": {"kind": "classify"}, "data": {"train": "a.csv"}}},
    },
}
COMMANDS = {
    "pretrain": ["pretrain"], "finetune": ["finetune"], "corpus": ["corpus", "build"], "index": ["index"],
    "study": ["study", "run"],
}  # fmt: skip
_PIECES = [*"[]{}'\"|>#%\na", ": ", "- ", "? ", "&a ", "*a ", "!x "]
_TEXT = yaml.safe_dump(RECIPES["pretrain"])
_VALID = _TEXT.encode()


@dataclass(frozen=True)
class Attack:
    """One hostile command line: a recipe (the bytes of a file, or what makes its path) and overrides."""

    name: str
    recipe: bytes | Callable[[Path], str] = _VALID
    overrides: tuple[str, ...] = ()
    verb: str = "pretrain"
    family: str = field(default="", compare=False)

    def arguments(self, folder: Path) -> list[str]:
        """Write the recipe into a folder and return the arguments of the command."""
        if callable(self.recipe):
            path = self.recipe(folder)
        else:
            file = folder / "recipe.yaml"
            file.write_bytes(self.recipe.replace(b"@CANARY@", os.fsencode(folder / CANARY)))
            path = str(file)
        overrides = [text.replace("@CANARY@", str(folder / CANARY)) for text in self.overrides]
        return [*COMMANDS[self.verb], "--dry-run", path, *overrides]


def _with(text: str) -> bytes:
    """Return a valid recipe with more lines."""
    return f"{_TEXT}{text}\n".encode("utf-8", "surrogatepass")


def sizes() -> Iterator[Attack]:
    """Files that are far too long."""
    yield Attack("a list of 6 MB", b"seed: [" + b"1, " * 2_000_000 + b"1]")
    yield Attack("a block list of 6 MB", b"corpus:\n  files:\n" + b"  - a\n" * 1_000_000)
    yield Attack("a string of 6 MB", b"output: " + b"x" * 6_000_000)
    yield Attack("a comment of 6 MB", b"#" * 6_000_000)
    yield Attack("spaces of 6 MB", b" " * 6_000_000)
    yield Attack("line breaks of 6 MB", b"\n" * 6_000_000)
    yield Attack("a list just below the limit", b"seed: [" + b"1," * 490_000 + b"1]")
    yield Attack("a string just below the limit", b"output: " + b"x" * 990_000)
    yield Attack("40,000 unknown keys", "".join(f"kez{i}: 1\n" for i in range(40_000)).encode())
    yield Attack("40,000 wrong files", b"corpus: {files: [" + b"[], " * 40_000 + b"[]]}")
    yield Attack("quotes just below the limit", b"output: '" + b"''" * 490_000 + b"'")
    yield Attack("a tag of 900 KB", b"output: !<" + b"x" * 900_000 + b"> a")
    yield Attack("an anchor of 900 KB", b"output: &" + b"x" * 900_000 + b" a")


def nesting() -> Iterator[Attack]:
    """Values in values in values."""
    for depth in (70, 1_000, 100_000, 450_000):
        yield Attack(f"{depth} open lists", b"seed: " + b"[" * depth)
        yield Attack(f"{depth} open mappings", b"seed: " + b"{a: " * min(depth, 200_000))
        yield Attack(f"{depth} block lists", b"seed:\n" + b"- " * depth)
        yield Attack(f"{depth} complex keys", b"? " * depth)
    yield Attack("1,000 closed lists", b"seed: " + b"[" * 1_000 + b"]" * 1_000)
    yield Attack("indented mappings", b"".join(b" " * i + b"a:\n" for i in range(1_000)))


def aliases() -> Iterator[Attack]:
    """Anchors, aliases and merge keys, which can multiply a small file into gigabytes."""
    laughs = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 10}]\n" for i in range(1, 12))
    yield Attack("a billion laughs", laughs.encode())
    yield Attack("one alias", _with("title: &t x\nother: *t"))
    yield Attack("an alias of itself", b"a: &a [*a]")
    yield Attack("an alias without an anchor", b"a: *b")
    yield Attack("an alias as a key", b"a: &a x\n*a : y")
    yield Attack("a merged alias", b"a: &a {seed: 1}\n<<: *a")
    yield Attack("a merged mapping", _with("<<: {seed: 1}"))
    yield Attack("a merged list", _with("<<: [{seed: 1}, {seed: 2}]"))
    yield Attack("a merge of nothing", _with("<<:"))
    yield Attack("an override with an alias", overrides=("seed=*x",))
    yield Attack("an override with a recursive alias", overrides=("seed=&x [*x]",))


def tags() -> Iterator[Attack]:
    """Tags that make other loaders construct objects and call functions."""
    calls = (
        "!!python/object/apply:os.system ['touch @CANARY@']",
        "!!python/object/new:os.system ['touch @CANARY@']",
        "!!python/object/apply:builtins.open ['@CANARY@', 'w']",
        "!!python/object/apply:builtins.eval [\"open('@CANARY@', 'w')\"]",
        "!!python/object/apply:subprocess.check_output [[touch, '@CANARY@']]",
        "!!python/object:pathlib.Path {}",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/tuple [1, 2]",
        "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch @CANARY@']",
        "!!java.lang.Runtime []",
        "!!js/function 'function() {}'",
        "!ruby/object:Gem::Installer {}",
        "!include /etc/passwd",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!timestamp 2020-01-01",
        "!!int many",
        "!!float much",
        "!!bool perhaps",
        "!!map 1",
        "!!str {a: 1}",
        "!!seq {a: 1}",
    )
    for call in calls:
        yield Attack(f"a value {call[:40]}", _with(f"seed: {call}"))
        if "@CANARY@" in call:
            yield Attack(f"an override {call[:40]}", overrides=(f"seed={call}",))
    yield Attack("a tag prefix", b"%TAG ! tag:yaml.org,2002:python/\n---\nseed: !name:os.system")


def characters() -> Iterator[Attack]:
    """Files that are not text in UTF-8, or contain what no text contains."""
    rng = random.Random(0)
    yield Attack("a NUL byte", _with("title: a\0b"))
    yield Attack("NUL bytes alone", b"\0" * 1_000)
    yield Attack("invalid UTF-8", _TEXT.encode() + b"title: \xff\xfe\n")
    yield Attack("a cut-off character", _TEXT.encode() + b"title: \xe2\x82")
    yield Attack("UTF-16", _TEXT.encode("utf-16"))
    yield Attack("UTF-16 without a mark", _TEXT.encode("utf-16-le"))
    yield Attack("UTF-32", _TEXT.encode("utf-32"))
    yield Attack("Latin-1", _TEXT.encode() + "title: é\n".encode("latin-1"))
    yield Attack("an encoded surrogate", _with("title: \ud800"))
    yield Attack("an escaped surrogate", _with('title: "\\ud800"'))
    yield Attack("an escape sequence", _with("title: \x1b[31mred"))
    yield Attack("an escape sequence in a key", _with('"\\e[31mred": 1'))
    yield Attack("a reversed key", _with('"\\u202egnirts": 1'))
    yield Attack("a tab as indentation", b"corpus:\n\tfiles: [a]")
    yield Attack("a gzip file", gzip.compress(_TEXT.encode(), mtime=0))
    yield Attack("a program", b"\x7fELF" + bytes(range(256)))
    for i in range(6):
        yield Attack(f"random bytes {i}", rng.randbytes(300))
    for i in range(8):
        # Pieces of YAML in a random order, without what could make a valid recipe.
        yield Attack(f"random YAML {i}", "".join(rng.choice(_PIECES) for _ in range(400)).encode())


def shapes() -> Iterator[Attack]:
    """Documents that are not one mapping."""
    contents = {
        "nothing": "", "a space": " ", "a comment": "# a recipe", "a start": "---", "an end": "...", "null": "null",
        "a list": "[1, 2]", "text": "hello", "a number": "42", "true": "true", "a quote": "'",
        "two documents": "---\na: 1\n---\nb: 2",
        "an empty mapping": "{}", "an unknown version": "%YAML 9.9\n---\na: 1", "an unclosed list": "a: [1",
        "an unclosed quote": "a: 'x", "two colons": "a: b: c",
        "JSON with a comma": '{"a": 1,,}', "HTML": "<html>&lt;</html>",
    }  # fmt: skip
    for name, content in contents.items():
        yield Attack(name, content.encode())


def keys() -> Iterator[Attack]:
    """Keys that are not words, or occur twice."""
    lines = (
        "seed: 1\nseed: 2", "output: again", "1: a", "1.5: a", "true: a", "null: a", "? [a]\n: b", "? {a: 1}\n: b",
        "'': a", "' ': a", "__class__: a", "__init__: {__globals__: a}",
        "model_config: {extra: allow}", "_variables: {}",
        "training.budget: 5 min", "'a\nb': 1", f"{'k' * 900}: 1", "? " + "k" * 50_000 + "\n: 1",
        "SEED: 1", "ｓｅｅｄ: 1",
        "<script>alert(1)</script>: 1", "'`|`': 1", "company: [svm]",
    )  # fmt: skip
    for line in lines:
        yield Attack(f"the key {line[:20]!r}", _with(line))


def numbers() -> Iterator[Attack]:
    """Numbers that overflow, or are none."""
    values = (
        "9" * 5_000, "0x" + "f" * 5_000, "0b" + "1" * 50_000, "1:" * 5_000 + "1",
        "-" + "1" * 90_000, "1" + "_1" * 2_000,
        ".inf", "-.inf", ".nan", "1e999", "1.5", "0x", "[1]", "{a: 1}", "one",
    )  # fmt: skip
    for value in values:
        yield Attack(f"the seed {value[:12]}", _with(f"seed: {value}"))
    for value in (".inf", ".nan", "-.inf", "1e999", "-1", "[]"):
        yield Attack(f"the learning rate {value}", _with(f"training: {{learning_rate: {value}}}"))
        yield Attack(f"the rate of the objective {value}", overrides=(f"objective.rate={value}",))


def types() -> Iterator[Attack]:
    """Valid recipes of every verb with one section of another type."""
    for verb, recipe in RECIPES.items():
        for key in recipe:
            for value in ([[]], 7, {"a": {"b": "c"}}):
                changed = {**recipe, key: value}
                yield Attack(f"{verb}: {key} is {value}", yaml.safe_dump(changed).encode(), verb=verb)


def variables() -> Iterator[Attack]:
    """Variables that are not set, and messages that could show one that is."""
    secret = f"${{{VARIABLE}}}"
    yield Attack("an unset variable", _with("title: ${HEADSTART_TEST_UNSET}"))
    for line in (f"seed: {secret}", f"seed: x{secret}", f"title: {secret}", f"training: {{budget: {secret}}}",
                 f"training: {{learning_rate: '{secret}'}}", f"backbone: {secret}", f"objective: {secret}",
                 f"training: {{report_to: ['{secret}']}}", f"cost: {secret}"):  # fmt: skip
        key = line.partition(":")[0]
        recipe = {name: value for name, value in RECIPES["pretrain"].items() if name != key}
        yield Attack(f"a secret in {line[:30]!r}", f"{yaml.safe_dump(recipe)}{line}\n".encode())


def paths() -> Iterator[Attack]:
    """Paths of recipes that are no files of text."""

    def fifo(folder: Path) -> str:
        os.mkfifo(folder / "fifo.yaml")
        return str(folder / "fifo.yaml")

    def loop(folder: Path) -> str:
        (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
        return str(folder / "loop.yaml")

    def dangling(folder: Path) -> str:
        (folder / "dangling.yaml").symlink_to(folder / "nowhere")
        return str(folder / "dangling.yaml")

    yield Attack("a directory", str)
    yield Attack("a pipe", fifo)
    yield Attack("a loop of links", loop)
    yield Attack("a dangling link", dangling)
    literal = (
        "/proc/self/mem", "/proc/self/environ", "/proc/self/maps", "/proc/kcore", "/dev/null",
        "/dev/zero", "/dev/tty",
        "", " ", "a\0b.yaml", "x" * 5_000, "x/" * 3_000, "recipes/../../../etc/passwd", "~", "${HOME}/x.yaml",
        "https://example.org/recipe.yaml", "recipes/quickstart",
    )  # fmt: skip
    for path in literal:
        yield Attack(f"the path {path[:30]!r}", lambda _, path=path: path)


def overrides() -> Iterator[Attack]:
    """Overrides of every odd shape."""
    texts = (
        "", "=", "==", "=1", " =1", "seed", ".", ".=1", "..=1", "a..b=1", ".a=1", "a.=1", "seed=[",
        "seed=[[[[", "seed={",
        "seed='",
        'seed="', "seed=" + "[" * 100_000, "seed=" + "{a: " * 20_000, "a." * 1_000 + "b=1", "a." * 60_000 + "b=1",
        "seed=" + "9" * 5_000, "seed=" + "x" * 120_000, "k" * 120_000 + "=1", "seed.deeper=1", "output.deeper=1",
        "objective.name.deeper=1", "corpus.files.0=a", "corpus=5", "corpus=", "objective=", "objective.name=",
        "objective.name=[masked_lm]", "backbone={}", "seed=1\n---\n2", "seed=!!binary aGVsbG8=",
        "seed=\0", "seed\0=1",
        "a\nb=1", "\x1b[31mred=1", "seed=\ud800", "\udcff=1", "__class__.__init__=1",
        "training.__class__=1", "seed=@",
        "seed=`id`", "seed=$(id)", "training.learning_rate=.nan", "training.budget=1e999 steps",
        "training.budget=-1 steps",
        "training.batch_size=0", "trainig.budget=1", "objective.rate=7", "seed=1: 2: 3", "seed=%x",
        "seed=- 1", "seed=? a",
    )  # fmt: skip
    for text in texts:
        yield Attack(f"the override {text[:30]!r}", overrides=(text,))
    yield Attack("3,000 overrides", overrides=tuple(f"kez{i}=1" for i in range(3_000)))


FAMILIES = (sizes, nesting, aliases, tags, characters, shapes, keys, numbers, types, variables, paths, overrides)


def attacks() -> list[Attack]:
    """Return `COUNT` attacks or more: all of each family, in order."""
    return [
        Attack(attack.name, attack.recipe, attack.overrides, attack.verb, family.__name__)
        for family in FAMILIES
        for attack in family()
    ]
