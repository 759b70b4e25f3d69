"""Whole runs of a decoder: instruction tuning on conversations, and prompts for answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import headstart
from headstart.backbones.decoder import Decoder
from headstart.core.vocabulary import vocabulary_of

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_tokenizers, verses) -> Path:
    """A tiny decoder whose tokenizer has a chat template, and two files of conversations."""
    folder = tmp_path_factory.mktemp("chat")
    torch.manual_seed(0)
    decoder = Decoder(Decoder.Config.model_validate({"kind": "gpt2", "size": "tiny", "max_length": 128}))
    decoder.build(vocabulary_of(tiny_tokenizers["bpe"]), 128, "AutoModelForCausalLM").save_pretrained(folder / "model")
    tiny_tokenizers["bpe"].save_pretrained(str(folder / "model"))
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    texts = [verse for verse in verses if len(verse.split()) > 6]
    for name, some in (("train", texts[:24]), ("test", texts[24:36])):
        lines = []
        for text in some:
            question, reply = " ".join(text.split()[:4]), " ".join(text.split()[4:7])
            talk = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
            lines.append(json.dumps({"messages": talk, "question": question, "target": reply}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def run(folder: Path, output: Path, **sections: Any) -> Any:
    data = {"train": str(folder / "train.jsonl"), "validation": 6, "test": str(folder / "test.jsonl")}
    training = {"budget": "3 steps", "batch_size": 4, "max_length": 96, "eval_count": 1}
    base = {"output": str(output), "model": str(folder / "model"), "seeds": 1, "data": data, "compare_with": []}
    return headstart.finetune({**base, "training": training, **sections}, quiet=True)


def test_conversations_are_learned_and_answered(folder, tmp_path):
    task = {"kind": "text_to_text", "messages": "messages", "gold": "text", "max_target": 8}
    result = run(folder, tmp_path / "out", task=task, adaptation={"name": "full"})
    assert (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8") == TEMPLATE
    questions = [json.loads(line)["messages"][:1] for line in (folder / "test.jsonl").read_text().splitlines()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"messages": q}) + "\n" for q in questions))
    headstart.predict(result.path, tmp_path / "rows.jsonl", tmp_path / "replies.jsonl", quiet=True)
    replies = [json.loads(line) for line in (tmp_path / "replies.jsonl").read_text().splitlines()]
    assert len(replies) == 12 and all(isinstance(row["prediction"], str) for row in replies)


def test_a_prompt_with_examples_is_evaluated(folder, tmp_path):
    task = {"kind": "prompt_text", "template": "Q: {question}\nA:", "shots": 2, "max_target": 8}
    result = run(folder, tmp_path / "out", task=task, adaptation="zero_shot")
    manifest = json.loads((Path(result.path) / "headstart.json").read_text(encoding="utf-8"))
    assert len(manifest["task"]["shown"]) == 2
    assert all(source.startswith("Q: ") and source.endswith("\nA:") for source, _ in manifest["task"]["shown"])
