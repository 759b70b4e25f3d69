"""Malformed inputs, each from its seed: an error that names the file, or every row accounted for; no crash, no hang.

Run as a script, it tries a stretch of them and writes down what went wrong; the campaign starts it in one process.
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
"""Of processor time, for one input; most take milliseconds."""
_MEMORY = 12 << 30
_WORDS = ["in", "the", "beginning", "God", "created", "heaven", "and", "earth", "light", "was", "good", "evening"]


def campaign(ground: Ground, count: int, seed: int = 0) -> Found:
    """Try `count` malformed inputs of every kind in turn."""
    folder = ground.fresh("malformed")
    folder.mkdir()
    code = _RUN.format(here=str(Path(__file__).parents[1]), folder=str(folder), count=count, seed=seed)
    child = ground.nursery.start([], code=code, limits={"RLIMIT_AS": _MEMORY})
    left = child.wait(7200)
    told = json.loads((folder / "found.json").read_text()) if (folder / "found.json").is_file() else None
    found = Found(
        "malformed inputs, from a seeded generator", "rows out + rejects = rows in; 0 crashes, 0 hangs", count
    )
    if left != 0 or told is None:
        found.failures = [f"the process left with {left}: {child.said()[-600:]}"]
        return found
    found.failures = told["failures"]
    found.notes = [", ".join(f"{number} × {kind}" for kind, number in told["kinds"].items())]
    found.notes.append(", ".join(f"{number} {outcome}" for outcome, number in told["outcomes"].items()))
    return found


def attempt(where: str, count: int, seed: int) -> None:
    """Make so many inputs and hand each to the reader that a user would hand it to."""
    import signal
    import traceback

    from headstart.core.errors import HeadstartError

    folder = Path(where)
    kinds, outcomes, failures = Counter[str](), Counter[str](), []

    def hangs(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_SECONDS} s of processor time")

    signal.signal(signal.SIGVTALRM, hangs)
    for number in range(count):
        name, make = list(_KINDS.items())[number % len(_KINDS)]
        chance = random.Random(f"{seed}/{number}")
        place = folder / f"{number:05d}"
        place.mkdir()
        kinds[name] += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)
        try:
            outcomes[make(place, chance)] += 1
        except HeadstartError as error:
            outcomes["refused by an error for a person"] += 1
            names = [place.name, *(path.name for path in place.iterdir())]
            if not any(one in str(error) for one in names):
                failures.append(f"{number} {name}: the error does not name the file: {error}")
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            failures.append(
                f"{number} {name}: {type(error).__name__}: {str(error)[:200]} at {last.filename}:{last.lineno}"
            )
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        place.rmdir()
    told = {"failures": failures, "kinds": kinds, "outcomes": outcomes}
    (folder / "found.json").write_text(json.dumps(told))
    sys.stdout.flush()


def _sentence(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randint(3, 30)))


def _spoil(content: bytes, chance: random.Random) -> bytes:
    """Do to bytes what disks, networks and editors do."""
    spoilt = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5, 20])):
        at = chance.randrange(len(spoilt) + 1)
        match chance.randrange(8):
            case 0 if spoilt:
                spoilt[at % len(spoilt)] ^= 1 << chance.randrange(8)
            case 1:
                del spoilt[at:]
            case 2:
                spoilt[at:at] = b"\x00" * chance.choice([1, 3, 4096])
            case 3:
                spoilt[at:at] = chance.choice(
                    [b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf"]
                )
            case 4:
                spoilt[at:at] = chance.choice(
                    [b'"', b"'", b"\r", b"\r\n", b"\n\n", b",", b"{", b"\\", b"\x1a", b"\x85"]
                )
            case 5:
                spoilt[at : at + chance.randint(1, 50)] = b""
            case 6:
                spoilt[at:at] = chance.randbytes(chance.randint(1, 200))
            case 7:
                spoilt[at:at] = b"a" * chance.choice([10, 100_000, 1_000_000])
    return bytes(spoilt)


def _corpus(place: Path, chance: random.Random, name: str, content: bytes, sure: list[str] | None = None) -> str:
    """Read a corpus of one file; whatever comes out, the books must balance and no untouched row be lost."""
    from headstart.corpus.read.readers import CorpusConfig, Receipt, documents

    (place / name).write_bytes(content)
    receipt, texts = Receipt(), set[str]()
    settings = {"files": [str(place / name)], "max_reject_share": 1.0}
    for document in documents(CorpusConfig(**settings), receipt):
        texts.add(document.text)
    # The reader checks its own books; they are checked here by another hand.
    if receipt.rows != receipt.documents + receipt.rejects + receipt.empty or receipt.documents < len(texts):
        raise AssertionError(f"{receipt.rows} rows in, {receipt.documents} + {receipt.rejects} + {receipt.empty} out")
    lost = [text for text in sure or [] if text not in texts]
    if lost:
        raise AssertionError(f"{len(lost)} untouched rows are lost, such as {lost[0][:60]!r}")
    return "read, with rejects" if receipt.rejects else "read whole"


def _json_lines(place: Path, chance: random.Random) -> str:
    """Lines of which some are spoilt in themselves: the others must all come out."""
    texts = [f"{number} {_sentence(chance)}" for number in range(chance.randint(1, 60))]
    lines = [json.dumps({"text": text}).encode() for text in texts]
    odd = [
        b"{}", b"null", b"[]", b'{"text": 5}', b'{"text": null}', b'{"text": ["a"]}', b'{"text": {"a": 1}}',
        b'{"text": ""}',
        b'{"text": "a", "text": "b"}', b"[" * 5000, b'{"text": "\\ud800"}', b'{"text": "' + b"x" * 2_000_000 + b'"}',
        b"\x00",
        b'{"text": 1e999}', b'{"tex', b"\xff\xff", b'{"text": "a"} trailing', b"   ", b'{"text": true}',
    ]  # fmt: skip
    touched = set(chance.sample(range(len(lines)), chance.randint(0, min(5, len(lines)))))
    for place_ in touched:
        spoilt = _spoil(lines[place_], chance) if chance.random() < 0.5 else chance.choice(odd)
        lines[place_] = spoilt
    content = b"\n".join(lines) + (b"\n" if chance.random() < 0.8 else b"")
    sure = [text for number, text in enumerate(texts) if number not in touched]
    # Bytes that an editor put into a line may hold a line's end, but never undo one.
    return _corpus(place, chance, "a.jsonl", content, sure)


def _whole(name: str, clean: Callable[[random.Random, Path], bytes]) -> Callable[[Path, random.Random], str]:
    def make(place: Path, chance: random.Random) -> str:
        return _corpus(place, chance, name, _spoil(clean(chance, place), chance))

    return make


def _text(chance: random.Random, _: Path) -> bytes:
    return "\n\n".join(_sentence(chance) for _ in range(chance.randint(0, 60))).encode()


def _lines(chance: random.Random, _: Path) -> bytes:
    return "".join(json.dumps({"text": _sentence(chance)}) + "\n" for _ in range(chance.randint(1, 60))).encode()


def _csv(chance: random.Random, _: Path) -> bytes:
    return ("text,other\n" + "".join(f'"{_sentence(chance)}",{n}\n' for n in range(chance.randint(1, 60)))).encode()


def _gzip(chance: random.Random, place: Path) -> bytes:
    import gzip

    return gzip.compress(_lines(chance, place))


def _parquet(chance: random.Random, place: Path) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts: Any = [_sentence(chance) for _ in range(chance.randint(1, 60))]
    column = chance.choice(
        [pa.array(texts), pa.array(range(len(texts))), pa.array([[t] for t in texts]), pa.array([None, *texts])]
    )
    path = place / "made.parquet"
    pq.write_table(pa.table({chance.choice(["text", "text", "text", "other"]): column}), path, row_group_size=7)
    content = path.read_bytes()
    path.unlink()
    return content


def _labelled(place: Path, chance: random.Random) -> str:
    """Labelled rows of every format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headstart.core.data import InputColumn
    from headstart.tasks.labelled import LABEL, TEXT, read

    rows = [(_sentence(chance), chance.choice(["yes", "no"])) for _ in range(chance.randint(1, 40))]
    suffix = chance.choice(["csv", "tsv", "jsonl", "json", "parquet"])
    path = place / f"rows.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"text": [t for t, _ in rows], "label": [label for _, label in rows]}), path)
    elif suffix in ("jsonl", "json"):
        path.write_text("".join(json.dumps({"text": t, "label": label}) + "\n" for t, label in rows))
    else:
        mark = "," if suffix == "csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{t}{mark}{label}\n" for t, label in rows))
    path.write_bytes(_spoil(path.read_bytes(), chance))
    columns = [InputColumn("text", TEXT, "task.text"), InputColumn("label", LABEL, "task.label", is_gold=True)]
    examples = read(path, columns)
    assert all(len(values) == len(examples.labels) for values in examples.columns.values())
    return "read whole"


def _recipe(place: Path, chance: random.Random) -> str:
    """Recipes: torn YAML, aliases that multiply, tags that would call code, values of other kinds."""
    from headstart.core import config
    from headstart.stages.pretrain.recipe import PretrainRecipe

    good = (Path(__file__).parents[3] / "recipes" / "quickstart" / "pretrain.yaml").read_bytes()
    laughs = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n".encode() for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    hostile = [
        laughs, good + laughs, b"seed: !!python/object/apply:os.system ['touch owned']\n", b"&a [*a]\n",
        b"[" * 3000, b"a: " * 3000, good + b"\nseed: 1" + b"0" * 5000, good + b"\nseed: .nan\n",
        good.replace(b"0.15", b"1e999"),        good.replace(b"seed: 0", b"seed: -1"), b"", b"\x00", b"- a\n- b\n",
        good.replace(b"kjv.txt.gz", b"../" * 500 + b"etc/passwd"),
        good.replace(b"${here}", b"${here${here}}"), good.replace(b"4096", b"4096.5"),
        good.replace(b"4096", b"10" * 40),
        good + b"\n? [a, b]\n: c\n", good + b"\n<<: {seed: 3}\n", good.replace(b"1.5e6 tokens", b"9" * 400 + b" s"),
    ]  # fmt: skip
    path = place / "recipe.yaml"
    path.write_bytes(chance.choice(hostile) if chance.random() < 0.5 else _spoil(good, chance))
    config.load(path, PretrainRecipe)
    return "read whole"


_MODEL: dict[str, bytes] = {}


def _model(place: Path, chance: random.Random) -> str:
    """A checkpoint with a hostile config, tokenizer or weights."""
    import torch

    from headstart.tasks.classify import Classify
    from headstart.tasks.source import CheckpointFolder

    if not _MODEL:
        _make_model(place / "made")
    for name, content in _MODEL.items():
        (place / name).write_bytes(content)
    which = chance.choice(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
    content = _MODEL[which]
    if which == "model.safetensors" and chance.random() < 0.6:
        content = _lying(content, chance)
    elif which.endswith(".json") and chance.random() < 0.6:
        content = _hostile(content, chance)
    else:
        content = _spoil(content, chance)
    (place / which).write_bytes(content)
    source = CheckpointFolder(place, Classify(Classify.Config()), 0)
    source.tokenizer()("in the beginning")
    model = source.pretrained()
    with torch.no_grad():
        sum(float(parameter.sum()) for parameter in model.parameters())
    return "read whole"


def _make_model(place: Path) -> None:
    """Make the smallest BERT with a tokenizer, once."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordLevel({w: n for n, w in enumerate(marks + sorted(set(_WORDS)))}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), marks, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(place))
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = BertConfig(vocab_size=40, max_position_embeddings=16, pad_token_id=0, **size)
    BertForMaskedLM(config).save_pretrained(str(place))
    _MODEL.update({path.name: path.read_bytes() for path in place.iterdir() if path.name != "generation_config.json"})
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


def _lying(content: bytes, chance: random.Random) -> bytes:
    """Return weights whose header says what is not so."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = chance.choice([key for key in header if key != "__metadata__"])
    tensor = header[name]
    match chance.randrange(9):
        case 0:
            return (2 ** chance.choice([40, 62, 63])).to_bytes(8, "little") + content[8:]
        case 1:
            tensor["data_offsets"] = [0, 2**60]
        case 2:
            tensor["data_offsets"] = tensor["data_offsets"][::-1]
        case 3:
            tensor["shape"] = [2**31, 2**31]
        case 4:
            tensor["shape"] = [-1, 8]
        case 5:
            tensor["dtype"] = chance.choice(["F64", "I8", "BF16", "nonsense", ""])
        case 6:
            header[name] = chance.choice([None, 5, [], {"dtype": "F32"}])
        case 7:
            del header[name]
        case 8:
            header["__metadata__"] = {"format": chance.choice(["tf", "", "../../x"])}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _hostile(content: bytes, chance: random.Random) -> bytes:
    """Return a config or tokenizer with one value replaced by something that it must not be."""
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
        key = chance.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and chance.random() < 0.7:
            at = at[key]
            continue
        at[key] = chance.choice(values)
        break
    return json.dumps(tree).encode()


def _odd_path(place: Path, chance: random.Random) -> str:
    """Paths that lead nowhere, in circles, or to what is no file."""
    import os

    from headstart.corpus.read.readers import CorpusConfig, Receipt, documents

    path = place / chance.choice(["a.txt", "a.jsonl", "a.parquet", "a.csv", "a.txt.gz", "a.exe", "é \n.txt", "a"])
    match chance.randrange(6):
        case 0:
            path.symlink_to(path.name)
        case 1:
            path.symlink_to(place / "nowhere")
        case 2:
            path.mkdir()
        case 3:
            path.write_bytes(b"")
        case 4:
            path.write_bytes(b"\x1f\x8b" + chance.randbytes(30))
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
    "labelled rows": _labelled,
    "recipe": _recipe,
    "checkpoint": _model,
    "odd path": _odd_path,
}
