"""Error messages: what was found, what is allowed, what to do, and no traceback."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from headstart.cli import main

DATA = Path(__file__).parents[2] / "recipes" / "quickstart" / "data"
PRETRAIN: dict[str, Any] = {
    "seed": 0,
    "output": "out",
    "corpus": {"files": ["corpus.txt"], "validation": 0.2},
    "tokenizer": {"vocab_size": 500},
    "backbone": {"family": "encoder", "size": "tiny"},
    "objective": {"name": "masked_lm"},
    "training": {"budget": "2 steps", "seq_length": 16, "batch_tokens": 64, "eval_count": 0},
}
FINETUNE: dict[str, Any] = {
    "seeds": 1,
    "output": "out",
    "model": "model",
    "task": {"kind": "classify", "text": "text", "label": "label"},
    "data": {"train": "train.csv", "validation": "validation.csv", "test": "test.csv"},
    "adaptation": {"name": "full"},
    "compare_with": ["majority"],
    "training": {"budget": "1 steps", "batch_size": 4, "max_length": 16, "eval_count": 1},
}
MULTITASK: dict[str, Any] = {
    "output": "out",
    "model": "model",
    "tasks": {name: {"task": FINETUNE["task"], "data": FINETUNE["data"]} for name in ("verses", "lines")},
    "adaptation": "full",
}
STUDY: dict[str, Any] = {
    "question": "Is the network better than chance?",
    "output": "out",
    "base": {"finetune": {key: FINETUNE[key] for key in ("model", "task", "data", "adaptation", "training")}},
    "baselines": ["majority"],
    "reference": "majority",
}


@dataclass(frozen=True)
class Case:
    """A wrong recipe or input: a command line, and the parts that its error message must contain."""

    name: str
    run: str
    found: str
    allowed: str
    do: str


CASES = [Case(**entry) for entry in yaml.safe_load(Path(__file__).with_name("wrong_inputs.yaml").read_text("utf-8"))]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, pretrained: Any) -> Path:
    """A folder with valid recipes and data, and the invalid files that the cases use."""
    folder = tmp_path_factory.mktemp("inputs")
    with gzip.open(DATA / "kjv.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read(150_000)
    rows = "text,label\n" + "".join(f"verse {number} of the book,{'ab'[number % 2]}\n" for number in range(8))
    files = {
        "pretrain.yaml": yaml.safe_dump(PRETRAIN),
        "finetune.yaml": yaml.safe_dump(FINETUNE),
        "multitask.yaml": json.dumps(MULTITASK),
        "study.yaml": yaml.safe_dump(STUDY),
        "no-objective.yaml": yaml.safe_dump({key: value for key, value in PRETRAIN.items() if key != "objective"}),
        "no-corpus.yaml": yaml.safe_dump({key: value for key, value in PRETRAIN.items() if key != "corpus"}),
        "broken.yaml": "seed: [0\noutput: x\n",
        "twice.yaml": "seed: 1\nseed: 2\n",
        "words.yaml": "pretrain something\n",
        "empty.yaml": "",
        "neither.yaml": "seed: 1\n",
        "corpus.txt": text,
        "blank.txt": "\n \n\n",
        "small.txt": "In the beginning.\n\n" * 12,
        "one.txt": "In the beginning.\n",
        "single.txt": "".join(f"verse {number} of the book\n\n" for number in range(60)),
        "text.docx": "words",
        "torn.parquet": "torn",
        "train.csv": rows,
        "copy.csv": rows,
        "validation.csv": rows.replace("book", "scroll"),
        "test.csv": rows.replace("book", "tablet"),
        "unseen.csv": rows.replace("book", "tablet") + "another verse,c\n",
        "one.csv": "text,label\nx,a\ny,a\n",
        "ragged.csv": "text,label\na,b,c\n",
        "tags.jsonl": '{"tokens": ["In", "Eden"], "tags": ["O", "B-LOC"]}\n' * 8,
        "parts.jsonl": '{"tokens": ["the", "man"], "tags": ["DET", "NOUN"]}\n' * 8,
        "untagged.jsonl": '{"tokens": ["the", "man"], "tags": ["DET"]}\n' * 8,
        "misplaced.jsonl": _questions("Who", start=5),
        "answers.jsonl": _questions("Where", start=6),
        "choices.jsonl": '{"question": "Who?", "choices": ["I", "you"], "answer": 2}\n' * 8,
        "folder/notes.md": "mine",
        "unfinished/recipe.yaml": "seed: 0\n",
        "unknown/config.json": '{"model_type": "nonsense"}',
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    pq.write_table(pa.table({"body": ["some text"] * 3, "number": [1, 2, 3]}), folder / "body.parquet")
    pq.write_table(pa.table({"text": ["a", None, "b"], "label": ["a", "b", "a"]}), folder / "nulls.parquet")
    pq.write_table(pa.table({"text": ["a", "c", "b"], "label": ["a", "b", None]}), folder / "no-label.parquet")
    _checkpoints(folder, pretrained.folder)
    return folder


def _questions(word: str, start: int) -> str:
    answers = {"text": ["I"], "answer_start": [start]}
    rows = ({"question": f"{word} {n}?", "context": "It is I.", "answers": answers} for n in range(8))
    return "".join(json.dumps(row) + "\n" for row in rows)


def _checkpoints(folder: Path, good: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, PreTrainedTokenizerFast, ViTConfig

    for name in ("model", "altered", "lacking", "torn"):
        shutil.copytree(good, folder / name, ignore=shutil.ignore_patterns("checkpoints", "logs", "prepared"))
    weights = bytearray((folder / "altered" / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "altered" / "model.safetensors").write_bytes(weights)
    (folder / "lacking" / "tokenizer.json").unlink()
    (folder / "torn" / "model.safetensors").write_bytes(weights[:1000])
    small = BertConfig(
        vocab_size=1000, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    for name, config in {"gpt2": GPT2Config(), "vit": ViTConfig(), "weightless": small}.items():
        config.save_pretrained(str(folder / name))
        for path in good.glob("tokenizer*.json"):
            shutil.copy2(path, folder / name)
    BertForMaskedLM(small).save_pretrained(str(folder / "wordless"))
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    table = {word: number for number, word in enumerate([*names.values(), "the", "lord", "god"])}
    backend = Tokenizer(models.WordLevel(table, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(folder / "words"))


@pytest.fixture
def here(inputs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes the folder of inputs the working directory; returns an output folder elsewhere."""
    monkeypatch.chdir(inputs)
    monkeypatch.setenv("HEADSTART_DEBUG", "")
    return tmp_path / "output"


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs the command line in this process; returns exit code, standard output and standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        code = stopped.value.code
        out, err = capsys.readouterr()
        return code if isinstance(code, int) else 0, out, err

    return run


def aside(arguments: list[str], output: Path) -> list[str]:
    """Add an output folder to the arguments, unless the case is about the output."""
    takes_one = arguments[0] in ("pretrain", "finetune") and not any(word.startswith("output=") for word in arguments)
    return [*arguments, f"output={output}"] if takes_one else arguments


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_message_has_what_was_found_what_is_allowed_and_what_to_do(case, here, call):
    code, out, err = call(*aside(shlex.split(case.run), here))
    assert code == 2, err
    assert err.startswith("headstart: ") and "Traceback" not in err and not out
    for part in (case.found, case.allowed, case.do):
        assert part in err, err
    assert err.rstrip().endswith((".", "?")), "a sentence ends in a full stop"
    assert not (here / "headstart.json").exists()


def test_every_case_has_a_name_and_three_parts():
    assert len(CASES) >= 20
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.found and case.allowed and case.do for case in CASES)


def test_all_problems_of_a_recipe_are_reported_at_once(here, call):
    code, _, err = call(
        "pretrain", "pretrain.yaml", "sede=1", "objective.rate=2", "training.budget=soon", "backbone.size=big"
    )
    assert code == 2
    for part in (
        "sede is not a known key",
        "objective.rate is 2",
        "training.budget is 'soon'",
        "backbone.size is 'big'",
    ):
        assert part in err


@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_corrected_recipe_may_use_the_output_of_one_that_failed_before_any_work(verb, here, call):
    wrong = {"pretrain": "corpus.files=[body.parquet]", "finetune": "data.test=unseen.csv"}[verb]
    assert call(verb, f"{verb}.yaml", wrong, f"output={here}", "--quiet")[0] == 2
    code, out, err = call(verb, f"{verb}.yaml", f"output={here}", "--quiet")
    assert code == 0, err
    assert "cost" in out and (here / "headstart.json").is_file()
    code, _, err = call(verb, f"{verb}.yaml", f"output={here}", "seed=9", "--quiet")
    assert code == 2 and "contains a run of another recipe" in err


def test_too_little_space_is_an_error_before_anything_is_written(here, call, monkeypatch):
    usage = shutil.disk_usage(here.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    code, _, err = call("pretrain", "pretrain.yaml", f"output={here}", "--quiet")
    assert code == 2 and "Traceback" not in err
    assert "MB and the disk has 0 MB free" in err and "Free some space, or set `output` to another disk" in err
    assert not (here / "headstart.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of a given size; the tests are skipped without the permission to mount."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if os.name != "posix" or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small disk cannot be mounted here; un-skipped for root on Linux")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("size", ["4k", "12k", "64k", "140k"])
def test_a_full_disk_is_reported_and_nothing_incomplete_remains(size, here, call, small_disk):
    """The space ends at different moments: at the copy of the recipe, the tokenizer or the shards."""
    disk = small_disk(size)
    code, _, err = call("pretrain", "pretrain.yaml", f"output={disk / 'out'}", "--quiet")
    assert code == 2, err
    assert "the disk filled up" in err and "Free some space" in err and "Traceback" not in err
    assert not [path for path in disk.rglob("*.staging") if path.is_dir()]


def broken(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("division by zero")


def test_an_internal_error_is_reported_without_a_traceback(here, call, monkeypatch):
    monkeypatch.setattr("headstart.stages.pretrain.run.run", broken)
    code, out, err = call("pretrain", "pretrain.yaml", f"output={here}")
    assert code == 1
    assert "headstart: ZeroDivisionError: division by zero" in err and "Internal error, please report it" in err
    assert "`headstart --debug …` shows the traceback" in err
    assert "Traceback" not in err and not out


def test_debug_shows_the_traceback(here, monkeypatch):
    monkeypatch.setattr("headstart.stages.pretrain.run.run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "pretrain", "pretrain.yaml", f"output={here}"])


@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize(
    ("group", "code", "error"), [("objectives", 1, "ZeroDivisionError"), ("objektives", 2, "RecipeError")]
)
def test_a_process_shows_a_traceback_only_with_debug(group, code, error, debug):
    script = (
        "import sys\n"
        "from headstart.core import registry\n"
        "registry._describe = lambda *_: 1 / 0\n"
        "from headstart.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    arguments = [*(["--debug"] if debug else []), "list", group]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (1 if debug else code)
    assert ("Traceback (most recent call last)" in done.stderr) is debug
    if debug or code == 1:
        assert error in done.stderr


def test_an_unknown_command_suggests_a_similar_one(call):
    code, _, err = call("pretran")
    assert code == 2 and "No such command 'pretran'" in err and "Did you mean 'pretrain'?" in err


# The recipe decides which verb is planned, and the place of the output does not change the cost.
OF_THE_VERB = {
    "missing section", "recipe of another verb", "machines without a meeting point",
    "more machines at least than at most", "machines that may be lost, without a restart",
}  # fmt: skip
OF_THE_OUTPUT = {
    "output with others' files", "output of another recipe", "output that is a file", "output inside a file",
    "shards in place of a file",
}  # fmt: skip
PLANNED = [
    case for case in CASES if shlex.split(case.run)[0] in ("pretrain", "finetune") and case.name not in OF_THE_VERB
]


@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.name.replace(" ", "-"))
def test_plan_refuses_what_the_verb_refuses(case, here, call):
    _, *arguments = aside(shlex.split(case.run), here)
    code, _, err = call("plan", *arguments)
    if case.name in OF_THE_OUTPUT:
        assert code == 0 and "The run would be refused: " in err, err
    else:
        assert code == 2 and case.found in err, err
    assert not here.exists(), "nothing is written"
