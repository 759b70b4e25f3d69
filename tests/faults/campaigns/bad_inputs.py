"""Malformed inputs from a seeded generator: an error names the file, or every row is accounted for; no crash, no hang.

`campaign` starts one process, which calls `attempt` to try all inputs and to record what went wrong.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .report import Found
from .subjects import Ground

_RUN = """
import os, sys
sys.path.insert(0, {here!r})
from campaigns import bad_inputs
bad_inputs.attempt({folder!r}, {count}, {seed})
os._exit(0)
"""
LIMIT_SECONDS = 30
"""CPU time for one input; most take milliseconds."""
_MEMORY = 12 << 30
_WORDS = ["in", "the", "beginning", "God", "created", "heaven", "and", "earth", "light", "was", "good", "evening"]


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Try `count` malformed inputs, of every kind in turn."""
    folder = ground.fresh("malformed")
    folder.mkdir()
    code = _RUN.format(here=str(Path(__file__).parents[1]), folder=str(folder), count=count, seed=seed)
    child = ground.nursery.start([], code=code, limits={"RLIMIT_AS": _MEMORY})
    exit_code, path = child.wait(7200), folder / "found.json"
    result = json.loads(path.read_text()) if path.is_file() else None
    found = Found(
        "malformed inputs, from a seeded generator", "rows out + rejects = rows in; 0 crashes, 0 hangs", count
    )
    if exit_code != 0 or result is None:
        found.failures = [f"the process exited with {exit_code}: {child.output()[-600:]}"]
        return found
    found.failures = result["failures"]
    found.notes = [", ".join(f"{number} × {kind}" for kind, number in result["kinds"].items())]
    found.notes.append(", ".join(f"{number} {outcome}" for outcome, number in result["outcomes"].items()))
    return found


def attempt(where: str, count: int, seed: int) -> None:
    """Create `count` inputs and pass each to the reader that a user would use."""
    import signal
    import traceback

    from headstart.core.errors import HeadstartError

    base = Path(where)
    kinds, outcomes, failures = Counter[str](), Counter[str](), []

    def hangs(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_SECONDS} s of CPU time")

    signal.signal(signal.SIGVTALRM, hangs)
    for number in range(count):
        name, make = list(_KINDS.items())[number % len(_KINDS)]
        rng = random.Random(f"{seed}/{number}")
        folder = base / f"{number:05d}"
        folder.mkdir()
        kinds[name] += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)
        try:
            outcomes[make(folder, rng)] += 1
        except HeadstartError as error:
            outcomes["refused with an error message"] += 1
            names = [folder.name, *(path.name for path in folder.iterdir())]
            if not any(part in str(error) for part in names):
                failures.append(f"{number} {name}: the error does not name the file: {error}")
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{number} {name}: {type(error).__name__}: {str(error)[:200]} at {last.filename}:{last.lineno}"
            )
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()
    result = {"failures": failures, "kinds": kinds, "outcomes": outcomes}
    (base / "found.json").write_text(json.dumps(result))
    sys.stdout.flush()


def _sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(3, 30)))


def _damage(content: bytes, rng: random.Random) -> bytes:
    """Damage bytes as disks, networks and editors do."""
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(damaged) + 1)
        match rng.randrange(8):
            case 0 if damaged:
                damaged[at % len(damaged)] ^= 1 << rng.randrange(8)
            case 1:
                del damaged[at:]
            case 2:
                damaged[at:at] = b"\x00" * rng.choice([1, 3, 4096])
            case 3:
                damaged[at:at] = rng.choice(
                    [b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"]
                )
            case 4:
                damaged[at:at] = rng.choice([b'"', b"'", b"\r", b"\r\n", b"\n\n", b",", b"{", b"\\", b"\x1a", b"\x85"])
            case 5:
                damaged[at : at + rng.randint(1, 50)] = b""
            case 6:
                damaged[at:at] = rng.randbytes(rng.randint(1, 200))
            case 7:
                damaged[at:at] = b"a" * rng.choice([10, 100_000, 1_000_000])
    return bytes(damaged)


def _corpus(folder: Path, rng: random.Random, name: str, content: bytes, sure: list[str] | None = None) -> str:
    """Read a corpus of one file: the row counts must add up, and no untouched row may be lost."""
    from headstart.corpus.read.readers import CorpusConfig, Receipt, documents

    (folder / name).write_bytes(content)
    receipt, texts = Receipt(), set[str]()
    settings = {"files": [str(folder / name)], "max_reject_share": 1.0}
    for document in documents(CorpusConfig(**settings), receipt):
        texts.add(document.text)
    # The reader checks its own counts; here they are checked independently.
    if receipt.rows != receipt.documents + receipt.rejects + receipt.empty or receipt.documents < len(texts):
        raise AssertionError(f"{receipt.rows} rows in, {receipt.documents} + {receipt.rejects} + {receipt.empty} out")
    lost = [text for text in sure or [] if text not in texts]
    if lost:
        raise AssertionError(f"{len(lost)} untouched rows are lost, such as {lost[0][:60]!r}")
    return "read, with rejects" if receipt.rejects else "read whole"


def _json_lines(folder: Path, rng: random.Random) -> str:
    """Lines of which some are damaged: all others must be read."""
    texts = [f"{number} {_sentence(rng)}" for number in range(rng.randint(1, 60))]
    lines = [json.dumps({"text": text}).encode() for text in texts]
    odd = [
        b"{}", b"null", b"[]", b'{"text": 5}', b'{"text": null}', b'{"text": ["a"]}', b'{"text": {"a": 1}}',
        b'{"text": ""}',
        b'{"text": "a", "text": "b"}', b"[" * 5000, b'{"text": "\\ud800"}', b'{"text": "' + b"x" * 2_000_000 + b'"}',
        b"\x00",
        b'{"text": 1e999}', b'{"tex', b"\xff\xff", b'{"text": "a"} trailing', b"   ", b'{"text": true}',
    ]  # fmt: skip
    touched = set(rng.sample(range(len(lines)), rng.randint(0, min(5, len(lines)))))
    for index in touched:
        damaged = _damage(lines[index], rng) if rng.random() < 0.5 else rng.choice(odd)
        lines[index] = damaged
    content = b"\n".join(lines) + (b"\n" if rng.random() < 0.8 else b"")
    sure = [text for number, text in enumerate(texts) if number not in touched]
    # Bytes inserted into a line may contain a line end, but never remove one.
    return _corpus(folder, rng, "a.jsonl", content, sure)


def _whole(name: str, clean: Callable[[random.Random, Path], bytes]) -> Callable[[Path, random.Random], str]:
    def make(folder: Path, rng: random.Random) -> str:
        return _corpus(folder, rng, name, _damage(clean(rng, folder), rng))

    return make


def _text(rng: random.Random, _: Path) -> bytes:
    return "\n\n".join(_sentence(rng) for _ in range(rng.randint(0, 60))).encode()


def _lines(rng: random.Random, _: Path) -> bytes:
    return "".join(json.dumps({"text": _sentence(rng)}) + "\n" for _ in range(rng.randint(1, 60))).encode()


def _csv(rng: random.Random, _: Path) -> bytes:
    return ("text,other\n" + "".join(f'"{_sentence(rng)}",{n}\n' for n in range(rng.randint(1, 60)))).encode()


def _gzip(rng: random.Random, folder: Path) -> bytes:
    import gzip

    return gzip.compress(_lines(rng, folder))


def _parquet(rng: random.Random, folder: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts: Any = [_sentence(rng) for _ in range(rng.randint(1, 60))]
    column = rng.choice(
        [pa.array(texts), pa.array(range(len(texts))), pa.array([[t] for t in texts]), pa.array([None, *texts])]
    )
    path = folder / "made.parquet"
    pq.write_table(pa.table({rng.choice(["text", "text", "text", "other"]): column}), path, row_group_size=7)
    content = path.read_bytes()
    path.unlink()
    return content


def _labeled(folder: Path, rng: random.Random) -> str:
    """Labeled rows in every format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headstart.core.data import InputColumn
    from headstart.tasks.labelled import LABEL, TEXT, read

    rows = [(_sentence(rng), rng.choice(["yes", "no"])) for _ in range(rng.randint(1, 40))]
    suffix = rng.choice(["csv", "tsv", "jsonl", "json", "parquet"])
    path = folder / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"text": [t for t, _ in rows], "label": [label for _, label in rows]}), path)
    elif suffix in ("jsonl", "json"):
        path.write_text("".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in rows))
    else:
        mark = "," if suffix == "csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{t}{mark}{label}\n" for t, label in rows))
    path.write_bytes(_damage(path.read_bytes(), rng))
    columns = [InputColumn("text", TEXT, "task.text"), InputColumn("label", LABEL, "task.label", is_gold=True)]
    examples = read(path, columns)
    assert all(len(values) == len(examples.labels) for values in examples.columns.values())
    return "read whole"


def _recipe(folder: Path, rng: random.Random) -> str:
    """Recipes: truncated YAML, aliases that multiply, tags that would run code, values of other types."""
    from headstart.core import config
    from headstart.stages.pretrain.recipe import PretrainRecipe

    good = (Path(__file__).parents[3] / "recipes" / "quickstart" / "pretrain.yaml").read_bytes()
    laughs = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n".encode() for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    hostile = [
        laughs, good + laughs, b"seed: !!python/object/apply:os.system ['touch owned']\n", b"&a [*a]\n",
        b"[" * 3000, b"a: " * 3000, good + b"\nseed: 1" + b"0" * 5000, good + b"\nseed: .nan\n",
        good.replace(b"0.15", b"1e999"), good.replace(b"seed: 0", b"seed: -1"), b"", b"\x00", b"- a\n- b\n",
        good.replace(b"kjv.txt.gz", b"../" * 500 + b"etc/passwd"),
        good.replace(b"${here}", b"${here${here}}"), good.replace(b"4096", b"4096.5"),
        good.replace(b"4096", b"10" * 40),
        good + b"\n? [a, b]\n: c\n", good + b"\n<<: {seed: 3}\n", good.replace(b"1.5e6 tokens", b"9" * 400 + b" s"),
    ]  # fmt: skip
    path = folder / "recipe.yaml"
    path.write_bytes(rng.choice(hostile) if rng.random() < 0.5 else _damage(good, rng))
    config.load(path, PretrainRecipe)
    return "read whole"


_MODEL: dict[str, bytes] = {}


def _model(folder: Path, rng: random.Random) -> str:
    """A checkpoint with a hostile config, tokenizer or weights."""
    import torch

    from headstart.tasks.classify import Classify
    from headstart.tasks.source import CheckpointFolder

    if not _MODEL:
        _make_model(folder / "made")
    for name, content in _MODEL.items():
        (folder / name).write_bytes(content)
    which = rng.choice(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
    content = _MODEL[which]
    if which == "model.safetensors" and rng.random() < 0.6:
        content = _false_header(content, rng)
    elif which.endswith(".json") and rng.random() < 0.6:
        content = _hostile(content, rng)
    else:
        content = _damage(content, rng)
    (folder / which).write_bytes(content)
    source = CheckpointFolder(folder, Classify(Classify.Config()), 0)
    source.tokenizer()("in the beginning")
    model = source.pretrained()
    with torch.no_grad():
        sum(float(parameter.sum()) for parameter in model.parameters())
    return "read whole"


def _make_model(folder: Path) -> None:
    """Create a minimal BERT with a tokenizer, once."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(
        models.WordLevel({w: n for n, w in enumerate(special + sorted(set(_WORDS)))}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(folder))
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=40, max_position_embeddings=16, pad_token_id=0, **size)
    BertForMaskedLM(config).save_pretrained(str(folder))
    _MODEL.update({path.name: path.read_bytes() for path in folder.iterdir() if path.name != "generation_config.json"})
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _false_header(content: bytes, rng: random.Random) -> bytes:
    """Return weights with a false header."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = rng.choice([key for key in header if key != "__metadata__"])
    tensor = header[name]
    match rng.randrange(9):
        case 0:
            return (2 ** rng.choice([40, 62, 63])).to_bytes(8, "little") + content[8:]
        case 1:
            tensor["data_offsets"] = [0, 2**60]
        case 2:
            tensor["data_offsets"] = tensor["data_offsets"][::-1]
        case 3:
            tensor["shape"] = [2**31, 2**31]
        case 4:
            tensor["shape"] = [-1, 8]
        case 5:
            tensor["dtype"] = rng.choice(["F64", "I8", "BF16", "nonsense", ""])
        case 6:
            header[name] = rng.choice([None, 5, [], {"dtype": "F32"}])
        case 7:
            del header[name]
        case 8:
            header["__metadata__"] = {"format": rng.choice(["tf", "", "../../x"])}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _hostile(content: bytes, rng: random.Random) -> bytes:
    """Return a config or tokenizer with one value replaced by an invalid one."""
    values: list[Any] = [
        None,
        -1,
        0,
        2**31,
        10**12,
        1e308,
        "",
        "x" * 100_000,
        [],
        {},
        [[]],
        True,
        "../../etc/passwd",
        "os.system",
    ]
    tree = json.loads(content)
    at: Any = tree
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.7:
            at = at[key]
            continue
        at[key] = rng.choice(values)
        break
    return json.dumps(tree).encode()


def _odd_path(folder: Path, rng: random.Random) -> str:
    """Paths that do not exist, link to themselves, or are not files."""
    import os

    from headstart.corpus.read.readers import CorpusConfig, Receipt, documents

    path = folder / rng.choice(["a.txt", "a.jsonl", "a.parquet", "a.csv", "a.txt.gz", "a.exe", "é \n.txt", "a"])
    match rng.randrange(6):
        case 0:
            path.symlink_to(path.name)
        case 1:
            path.symlink_to(folder / "nowhere")
        case 2:
            path.mkdir()
        case 3:
            path.write_bytes(b"")
        case 4:
            path.write_bytes(b"\x1f\x8b" + rng.randbytes(30))
        case 5:
            path.symlink_to(os.devnull)
    for _ in documents(CorpusConfig(files=[str(path)], max_reject_share=1.0), Receipt()):
        pass
    return "read whole"


_KINDS: dict[str, Callable[[Path, random.Random], str]] = {
    "JSON lines, row by row": _json_lines,
    "plain text": _whole("a.txt", _text),
    "JSON lines": _whole("a.jsonl", _lines),
    "CSV": _whole("a.csv", _csv),
    "gzip": _whole("a.jsonl.gz", _gzip),
    "Parquet": _whole("a.parquet", _parquet),
    "labeled rows": _labeled,
    "recipe": _recipe,
    "checkpoint": _model,
    "odd path": _odd_path,
}
