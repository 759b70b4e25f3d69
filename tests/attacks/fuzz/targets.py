"""What is fuzzed: every parser of files and texts from outside, each as a function of bytes.

A target may raise `HeadstartError`, which is a sentence for the user. Any other exception is a defect, and so is an
input that takes longer than `LIMIT_SECONDS`.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

LIMIT_SECONDS = 20
ROOT = Path(__file__).parents[3]


class Target(NamedTuple):
    """A parser, and valid inputs from which the fuzzer starts."""

    parse: Callable[[bytes, Path], None]
    seeds: Callable[[], list[bytes]]


def run(name: str, data: bytes) -> None:
    """Give an input to a target, in an empty folder; a `HeadstartError` is what it should raise."""
    from headstart.core.errors import HeadstartError

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(HeadstartError):
        TARGETS[name].parse(data, Path(folder))


def _recipe(data: bytes, folder: Path) -> None:
    from headstart.core import config
    from headstart.stages.pretrain.recipe import PretrainRecipe

    (folder / "recipe.yaml").write_bytes(data)
    config.load(folder / "recipe.yaml", PretrainRecipe)


def _finetune_recipe(data: bytes, folder: Path) -> None:
    from headstart.core import config
    from headstart.stages.finetune.recipe import FinetuneRecipe

    (folder / "recipe.yaml").write_bytes(data)
    config.load(folder / "recipe.yaml", FinetuneRecipe)


def _overrides(data: bytes, folder: Path) -> None:
    from headstart.core import config
    from headstart.stages.pretrain.recipe import PretrainRecipe

    overrides = data.decode("utf-8", errors="surrogateescape").splitlines()
    config.load(ROOT / "recipes" / "quickstart" / "pretrain.yaml", PretrainRecipe, overrides)


def _study(data: bytes, folder: Path) -> None:
    from headstart.core import config
    from headstart.studies.definition import Study

    (folder / "study.yaml").write_bytes(data)
    config.load(folder / "study.yaml", Study)


def _contrast(data: bytes, folder: Path) -> None:
    from headstart.studies.contrast import Contrast

    try:
        Contrast.parse(data.decode("utf-8", errors="replace"))
    except ValueError as error:
        # pydantic turns it into a sentence about the claim.
        assert str(error)


def _corpus_file(suffix: str) -> Callable[[bytes, Path], None]:
    def parse(data: bytes, folder: Path) -> None:
        from headstart.corpus.read.readers import CorpusConfig, Receipt, documents

        path = folder / f"text{suffix}"
        path.write_bytes(data)
        receipt = Receipt()
        for document in documents(CorpusConfig(files=[str(path)], max_reject_share=1.0), receipt):
            document.text.encode("utf-8")
        assert receipt.rows == receipt.documents + receipt.rejects + receipt.empty

    return parse


def _crawl_file(suffix: str) -> Callable[[bytes, Path], None]:
    def parse(data: bytes, folder: Path) -> None:
        from headstart.corpus.read.batches import read_batches
        from headstart.corpus.read.sources import SourceConfig, parts_of

        path = folder / f"pages{suffix}"
        path.write_bytes(data)
        source = SourceConfig.model_validate({"name": "crawl", "files": [str(path)]})
        for part in parts_of([source], 1.0):
            for batch in read_batches(part, source, 1 << 20):
                assert batch is not None

    return parse


def _labeled_file(suffix: str) -> Callable[[bytes, Path], None]:
    def parse(data: bytes, folder: Path) -> None:
        from headstart.core.data import InputColumn
        from headstart.tasks.labelled import LABEL, TEXT, read

        path = folder / f"rows{suffix}"
        path.write_bytes(data)
        columns = [InputColumn("text", TEXT, "task.text"), InputColumn("label", LABEL, "task.label", is_gold=True)]
        examples = read(path, columns)
        assert all(len(values) == len(examples.labels) for values in examples.columns.values())

    return parse


def _manifest(data: bytes, folder: Path) -> None:
    from headstart.core import artifact
    from headstart.core.errors import HeadstartError
    from headstart.stages.runs import manifest

    (folder / artifact.MANIFEST).write_bytes(data)
    values = artifact.read_manifest(folder)
    for kind in (manifest.PretrainManifest, manifest.FinetuneManifest):
        with contextlib.suppress(HeadstartError):
            kind.from_dict(values, folder)
    artifact.verify(folder)


def _tokenizer(data: bytes, folder: Path) -> None:
    from headstart.checkpoint.load import load_tokenizer

    for name, content in _model().items():
        (folder / name).write_bytes(content)
    (folder / "tokenizer.json").write_bytes(data)
    load_tokenizer(folder)


def _config(data: bytes, folder: Path) -> None:
    from headstart.checkpoint.load import load_config

    (folder / "config.json").write_bytes(data)
    load_config(folder)


def _weights(data: bytes, folder: Path) -> None:
    from headstart.checkpoint.load import load_model

    for name, content in _model().items():
        (folder / name).write_bytes(content)
    (folder / "model.safetensors").write_bytes(data)
    load_model("AutoModelForMaskedLM", folder)


def _adapter(data: bytes, folder: Path) -> None:
    from headstart.checkpoint.files import require_safe

    (folder / "adapter_config.json").write_bytes(data)
    require_safe(folder)


@cache
def _model() -> dict[str, bytes]:
    """Return the files of a minimal BERT."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*special, "a", "b"])}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    with tempfile.TemporaryDirectory() as folder:
        PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
        BertForMaskedLM(BertConfig(vocab_size=7, max_position_embeddings=8, **sizes)).save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _files(pattern: str) -> Callable[[], list[bytes]]:
    return lambda: [path.read_bytes() for path in sorted(ROOT.glob(pattern))]


def _texts(*texts: str) -> Callable[[], list[bytes]]:
    return lambda: [text.encode() for text in texts]


def _parquet() -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [{"text": ["a", "b"], "label": ["x", "y"]}, {"text": [None, "b"], "label": [1, 2]}]
    written = []
    for columns in tables:
        buffer = io.BytesIO()
        pq.write_table(pa.table(columns), buffer, compression="none")
        written.append(buffer.getvalue())
    return written


def _warc() -> list[bytes]:
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><p>In the beginning was a sentence.</p></html>"
    record = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.b/\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    chunked = page.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<p>ab\r\n0\r\n\r\n", 1)
    return [record % (len(body), body) for body in (page, chunked)]


def _manifests() -> list[bytes]:
    file = {"bytes": 1, "sha256": "a" * 64}
    return [
        json.dumps({"format": 2, "kind": kind, "files": {"model.safetensors": file}, "recipe": {}, "seal": ""}).encode()
        for kind in ("pretrained", "finetuned")
    ]


def _headers() -> list[bytes]:
    good = _model()["model.safetensors"]
    return [good, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2**62) + good[8:]]


_ROWS = ("text,label\na,x\n", 'text,label\n"a, b",1\n"c\nd",2\n')
_LINES = ('{"text": "a", "label": "x"}\n', '{"text": "a\\u00e9", "label": 1}\n{}\n')
TARGETS: dict[str, Target] = {
    "pretrain recipe": Target(_recipe, _files("recipes/*/pretrain*.yaml")),
    "finetune recipe": Target(_finetune_recipe, _files("recipes/minilm/*.yaml")),
    "overrides": Target(_overrides, _texts("seed=3\ntraining.budget=2 steps", "objective={name: causal_lm}", "a=[1]")),
    "study": Target(_study, _files("studies/*.yaml")),
    "contrast": Target(_contrast, _texts("masked_lm > causal_lm on mean(score)", "a ~ b within 1 on score")),
    "corpus text": Target(_corpus_file(".txt"), _texts("a b\n\nc d\n", "\ufeffé\r\n\r\nb")),
    "corpus jsonl": Target(_corpus_file(".jsonl"), _texts(*_LINES)),
    "corpus csv": Target(_corpus_file(".csv"), _texts(*_ROWS)),
    "corpus parquet": Target(_corpus_file(".parquet"), _parquet),
    "corpus html": Target(_crawl_file(".html"), _texts("<html><body><p>One sentence, long enough.</p></body></html>")),
    "corpus warc": Target(_crawl_file(".warc"), _warc),
    "labeled csv": Target(_labeled_file(".csv"), _texts(*_ROWS)),
    "labeled tsv": Target(_labeled_file(".tsv"), _texts("text\tlabel\na\tx\n")),
    "labeled jsonl": Target(_labeled_file(".jsonl"), _texts(*_LINES)),
    "labeled parquet": Target(_labeled_file(".parquet"), _parquet),
    "manifest": Target(_manifest, _manifests),
    "tokenizer": Target(_tokenizer, lambda: [_model()["tokenizer.json"]]),
    "config": Target(_config, lambda: [_model()["config.json"]]),
    "weights": Target(_weights, _headers),
    "adapter": Target(_adapter, _texts('{"peft_type": "LORA", "target_modules": ".*(q|v)_proj", "rank_pattern": {}}')),
}
