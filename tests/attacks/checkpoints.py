"""Hostile checkpoints: more than a hundred folders, each a good one with one change that should not get through.

Code in them creates the file that `HEADSTART_CANARY` names, so a test sees whether any of it ran.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command import CANARY

Change = Callable[[Path], None]

_CODE = f"""
import os
open(os.environ["{CANARY}"], "w").write("executed")
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Evil(PreTrainedConfig):
    model_type = "evil"
class EvilModel(PreTrainedModel):
    config_class = Evil
class EvilTokenizer(PreTrainedTokenizerFast):
    pass
"""


class _Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os; open(os.environ['{CANARY}'], 'w').write('unpickled')",)


def setting(file: str, **values: Any) -> Change:
    """Set keys of a JSON file; a value of None removes the key."""

    def change(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text()) if path.is_file() else {}
        content.update(values)
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def content(file: str, data: bytes | str) -> Change:
    """Replace a file."""

    def change(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())

    return change


def instead(file: str, kind: str) -> Change:
    """Put a link, a pipe or a folder where a file should be."""

    def change(folder: Path) -> None:
        path = folder / file
        path.unlink(missing_ok=True)
        match kind:
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
            case "loop":
                path.symlink_to(path.name)
            case "missing":
                pass
            case target:
                path.symlink_to(target)

    return change


def outside(file: str) -> Change:
    """Move a file out of the folder and put a link in its place."""

    def change(folder: Path) -> None:
        away = folder.parent / f"{folder.name}-{Path(file).name}"
        (folder / file).rename(away)
        (folder / file).symlink_to(away)

    return change


def code(file: str, **values: Any) -> Change:
    """Add a module that creates the canary, and the settings that refer to it."""

    def change(folder: Path) -> None:
        (folder / "evil.py").write_text(_CODE)
        setting(file, **values)(folder)

    return change


def pickled(*names: str, index: bool = False) -> Change:
    """Replace the weights by pickles that run code."""

    def change(folder: Path) -> None:
        import torch

        (folder / "model.safetensors").unlink()
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save({"weight": _Bomb()}, folder / name)
        if index:
            (folder / "pytorch_model.bin.index.json").write_text(
                json.dumps({"metadata": {}, "weight_map": {"weight": names[0]}})
            )

    return change


def header(entries: Any, *, size: int | None = None, data: bytes = b"\0" * 64) -> Change:
    """Replace the weights by a safetensors file with this header."""

    def change(folder: Path) -> None:
        text = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)

    return change


def index(weight_map: Any, *, keep: bool = False) -> Change:
    """Replace the weights by an index of weights."""

    def change(folder: Path) -> None:
        away = folder.parent / f"{folder.name}-outside.safetensors"
        away.write_bytes((folder / "model.safetensors").read_bytes())
        if not keep:
            (folder / "model.safetensors").unlink()
        entries = json.loads(json.dumps(weight_map).replace("OUTSIDE", away.name))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": entries}))

    return change


def vocabulary(**tokens: Any) -> Change:
    """Add tokens to tokenizer.json."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        tokenizer["model"]["vocab"].update(tokens)
        path.write_text(json.dumps(tokenizer))

    return change


def _without_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("tokenizer*"), *folder.glob("special*"), *folder.glob("vocab*")]:
        path.unlink()


def _many_tokens(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"].update({f"t{number}": number for number in range(1000, 2_400_000)})
    path.write_text(json.dumps(tokenizer))


def _large(file: str, megabytes: int) -> Change:
    def change(folder: Path) -> None:
        with (folder / file).open("r+b") as stream:
            stream.truncate(megabytes * 1_000_000)

    return change


def _modules(*modules: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "evil.py").write_text(_CODE)
        (folder.parent / "outside_module").mkdir(exist_ok=True)
        (folder / "modules.json").write_text(json.dumps(list(modules)))

    return change


def _adapter(**values: Any) -> Change:
    def change(folder: Path) -> None:
        base = {"peft_type": "LORA", "r": 2, "target_modules": ["query"], "base_model_name_or_path": str(folder)}
        (folder / "adapter_config.json").write_text(json.dumps(base | values))

    return change


_DEEP = "[" * 100_000
_TENSOR = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
_TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}

CHANGES: dict[str, Change] = {
    # Code
    "config auto_map, unknown type": code("config.json", model_type="evil", auto_map={"AutoConfig": "evil.Evil"}),
    "config auto_map, no type": code("config.json", model_type=None, auto_map={"AutoConfig": "evil.Evil"}),
    "config auto_map, a list as type": code("config.json", model_type=["bert"], auto_map={"AutoConfig": "evil.Evil"}),
    "model auto_map, unknown type": code(
        "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.Evil", "AutoModelForMaskedLM": "evil.EvilModel", "AutoModel": "evil.EvilModel"},
    ),
    "auto_map of another repository": code("config.json", model_type="evil", auto_map={"AutoConfig": "a/b--evil.Evil"}),
    "auto_map as text": code("config.json", model_type="evil", auto_map="evil.Evil"),
    "auto_map as list": code("config.json", model_type="evil", auto_map=[1]),
    "tokenizer auto_map, unknown class": code(
        "tokenizer_config.json",
        tokenizer_class="EvilTokenizer",
        auto_map={"AutoTokenizer": [None, "evil.EvilTokenizer"]},
    ),
    "attention from a repository": setting("config.json", attn_implementation="evil/kernel"),
    "attention from a repository, private": setting("config.json", _attn_implementation="evil/kernel@main:f"),
    "pickle alone": pickled("pytorch_model.bin"),
    "pickles with an index": pickled("pytorch_model-00001-of-00001.bin", index=True),
    "adapter pickle": lambda folder: (_adapter()(folder), pickled("adapter_model.bin")(folder))[0],
    "pickle named safetensors": lambda folder: (
        pickled("pytorch_model.bin")(folder),
        (folder / "pytorch_model.bin").rename(folder / "model.safetensors"),
    )[0],
    "sentence module from the folder": _modules(_TRANSFORMER, {"idx": 1, "name": "1", "path": "", "type": "evil.Evil"}),
    "sentence module of the system": _modules(_TRANSFORMER, {"idx": 1, "name": "1", "path": "", "type": "os.system"}),
    "adapter imports a module": _adapter(megatron_config={"a": 1}, megatron_core="evil"),
    "quantization that does not exist": setting("config.json", quantization_config={"quant_method": "evil"}),
    "quantization of another library": setting("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "quantization as text": setting("config.json", quantization_config="evil"),
    # Paths
    "index to a file beside the folder": index({"a": "../OUTSIDE"}),
    "index to a file beside the folder, with weights": index({"a": "../OUTSIDE"}, keep=True),
    "index to an absolute path": index({"a": "/etc/passwd"}),
    "index to a URL": index({"a": "https://example.com/model.safetensors"}),
    "index to a missing file": index({"a": "model-00001.safetensors"}),
    "index to numbers": index({"a": 1}),
    "index to a list": index([1]),
    "index to pickles": lambda folder: (
        pickled("pytorch_model.bin")(folder),
        content("model.safetensors.index.json", json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))(folder),
    )[0],
    **{
        f"{file} is a link out of the folder": outside(file)
        for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    },
    **{
        f"{file} is a {kind}": instead(file, kind)
        for file in ("config.json", "model.safetensors", "tokenizer.json")
        for kind in ("folder", "pipe", "loop")
    },
    "config is /dev/zero": instead("config.json", "/dev/zero"),
    "weights are /dev/zero": instead("model.safetensors", "/dev/zero"),
    "config is /etc/passwd": instead("config.json", "/etc/passwd"),
    "no config": instead("config.json", "missing"),
    "no weights": instead("model.safetensors", "missing"),
    "no tokenizer": _without_tokenizer,
    "sentence module outside": _modules({**_TRANSFORMER, "path": "../outside_module"}),
    "sentence module at the root": _modules({**_TRANSFORMER, "path": "/"}),
    # config.json as text
    **{
        f"config is {name}": content("config.json", data)
        for name, data in {
            "empty": "",
            "a list": "[]",
            "null": "null",
            "a number": "1",
            "torn": '{"model_type": "be',
            "deep": _DEEP,
            "deep objects": '{"a":' * 50_000,
            "NUL bytes": b"\0" * 100,
            "UTF-16": '{"model_type": "bert"}'.encode("utf-16"),
            "not UTF-8": b"\xff\xfe\xfa",
            "without type": "{}",
            "of no known type": '{"model_type": "nothing"}',
            "of an odd type": '{"model_type": {"a": 1}}',
            "a huge number": '{"model_type": "bert", "hidden_size": 1' + "0" * 5000 + "}",
        }.items()
    },
    "config of 20 MB": _large("config.json", 20),
    # config.json by value
    **{
        f"{key} = {value!r:.20}": setting("config.json", **{key: value})
        for key, values in {
            "hidden_size": [-1, 0, 10**9, 10**30, "big", [1], 3.5, 7],
            "num_hidden_layers": [-1, 10**9, "x", 1e30],
            "num_attention_heads": [0, -2, 7, 10**9],
            "vocab_size": [-5, 0, 3, 10**7, 10**12, "x"],
            "intermediate_size": [-1, 10**9, "x"],
            "max_position_embeddings": [-1, 0, 1, 10**12, "x"],
            "pad_token_id": [10**6, "x", 2.5],
            "hidden_act": ["evil", 3],
            "dtype": ["os.system", "evil", 3],
            "layer_norm_eps": ["x", [1]],
            "hidden_dropout_prob": [7, "x"],
            "id2label": ["x", [1], {"a": "b"}],
            "num_labels": [10**9, -1, "x"],
            "architectures": ["x", [1], []],
            "type_vocab_size": [0, -1, 10**9],
        }.items()
        for value in values
    },
    # Weights
    "weights are empty": content("model.safetensors", b""),
    "weights are seven bytes": content("model.safetensors", b"1234567"),
    "weights are noise": content("model.safetensors", bytes(range(256)) * 40),
    "weights are cut": lambda folder: content("model.safetensors", (folder / "model.safetensors").read_bytes()[:-1000])(
        folder
    ),
    "header of 2^63 bytes": header({}, size=2**63),
    "header longer than the file": header({}, size=10_000),
    "header of 90 MB": header(" " * 90_000_000),
    "header is no JSON": header("{'a'"),
    "header is a list": header([1]),
    "header is deep": header(_DEEP),
    "header of odd entries": header({"a": 1}),
    "no tensors": header({}),
    "an unknown number format": header({"a": _TENSOR | {"dtype": "F3"}}),
    "a negative shape": header({"a": _TENSOR | {"shape": [-4, -4]}}),
    "a shape beyond 64 bits": header({"a": _TENSOR | {"shape": [2**40, 2**40]}}),
    "offsets beyond the file": header({"a": _TENSOR | {"data_offsets": [0, 10**12]}}),
    "offsets that overlap": header({"a": _TENSOR, "b": _TENSOR}),
    "offsets that run backward": header({"a": _TENSOR | {"data_offsets": [64, 0]}}),
    "one tensor of another network": header({"a": _TENSOR}),
    # Tokenizer
    **{
        f"tokenizer is {name}": content("tokenizer.json", data)
        for name, data in {
            "empty": "",
            "a list": "[]",
            "null": "null",
            "torn": '{"version": "1.0", "mod',
            "deep": _DEEP,
            "without model": '{"version": "1.0"}',
            "of an unknown model": '{"version": "1.0", "model": {"type": "Evil", "vocab": {}}}',
            "without tokens": '{"version": "1.0", "model": {"type": "WordPiece", "vocab": {}, "unk_token": "[UNK]"}}',
            "NUL bytes": b"\0" * 100,
        }.items()
    },
    "tokenizer of 80 MB": _large("tokenizer.json", 80),
    "tokenizer with 2.4 million tokens": _many_tokens,
    "token id beyond the embeddings": vocabulary(verily=1_000_000),
    "token id beyond 32 bits": vocabulary(verily=2**40),
    "negative token id": vocabulary(verily=-1),
    "token id as text": vocabulary(verily="a"),
    **{
        f"tokenizer {key} = {value!r:.20}": setting("tokenizer_config.json", **{key: value})
        for key, values in {
            "tokenizer_class": ["os.system", 3, "T5Tokenizer"],
            "model_max_length": [-1, "x"],
            "pad_token": [3, {"content": 3}],
            "added_tokens_decoder": ["x", {"999999999": {"content": "x"}}],
        }.items()
        for value in values
    },
    "tokenizer config is a list": content("tokenizer_config.json", "[]"),
    # Adapters
    "adapter beside the weights": _adapter(),
    "adapter of another folder": _adapter(base_model_name_or_path="/etc"),
    "adapter with a slow pattern": _adapter(target_modules="(.*)*x"),
    "adapter with a slow rank pattern": _adapter(rank_pattern={"(a|a)*b": 2}),
    "adapter of an unknown method": _adapter(peft_type="EVIL"),
    "adapter config is a list": content("adapter_config.json", "[]"),
    # Sentence transformers and generation
    "modules as object": content("modules.json", "{}"),
    "modules without type": _modules({"idx": 0}),
    "modules of numbers": _modules(1),
    "pooling without mode": lambda folder: (
        _modules(_TRANSFORMER, {"idx": 1, "name": "1", "path": "p", "type": "sentence_transformers.models.Pooling"})(
            folder
        ),
        content("p/config.json", "[]")(folder),
    )[0],
    "sentence settings are a list": content("sentence_bert_config.json", "[]"),
    "sentence length as text": content("sentence_bert_config.json", '{"max_seq_length": "x"}'),
    "generation settings of odd types": content("generation_config.json", '{"num_beams": "x", "eos_token_id": "y"}'),
    "generation settings are a list": content("generation_config.json", "[]"),
}
