"""Instruction tuning: conversations, the tokenizer's chat template, and a loss on the reply only."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from pydantic import ValidationError
from transformers import PreTrainedTokenizerFast

from headstart.core.data import Examples, InputSpec
from headstart.core.errors import DataError
from headstart.tasks import labelled
from headstart.tasks.source import CheckpointFolder
from headstart.tasks.text_to_text import TextToText

TEMPLATE = (
    "{% for m in messages %}[CLS]{{ m.role }}\n{{ m.content }}[SEP]{% endfor %}"
    "{% if add_generation_prompt %}[CLS]assistant\n{% endif %}"
)
TALK = [
    {"role": "user", "content": "Who said it?"},
    {"role": "assistant", "content": "God"},
    {"role": "user", "content": "And what was it?"},
    {"role": "assistant", "content": "Let there be light"},
]


def task_of(**settings) -> TextToText:
    return TextToText(TextToText.Config.model_validate({"gold": "text", **settings}))


@pytest.fixture(scope="module")
def chatty(tiny_tokenizers) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template."""
    tokenizer = copy.deepcopy(tiny_tokenizers["bpe"])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def rows(tmp_path) -> Examples:
    (tmp_path / "talks.jsonl").write_text(json.dumps({"messages": TALK}) + "\n", encoding="utf-8")
    return labelled.read(tmp_path / "talks.jsonl", task_of(messages="messages").columns("train"))


def test_the_last_reply_is_the_target_and_only_it_has_a_loss(chatty, rows):
    task = task_of(messages="messages")
    assert list(rows.labels) == ["Let there be light"]
    (feature,) = task.encode(rows, InputSpec(chatty, "decoder", 256), training=True)
    whole = chatty.apply_chat_template(TALK, tokenize=False)
    assert chatty.decode(feature["input_ids"]) == whole, "the row is exactly what the template makes of it"
    kept = [token for token in feature["labels"] if token != -100]
    assert chatty.decode(kept) == "Let there be light[SEP]"
    assert feature["labels"][-len(kept) :] == kept and len(feature["labels"]) == len(feature["input_ids"])


def test_a_conversation_without_its_reply_is_answered_from_the_same_prompt(chatty):
    task, spec = task_of(messages="messages"), InputSpec(chatty, "decoder", 256)
    asked, answered = (
        task.encode(Examples({"messages": [talk]}, [None]), spec)[0]["input_ids"] for talk in (TALK[:-1], TALK)
    )
    assert asked == answered, "a reply is not part of the prompt"
    assert chatty.decode(asked).endswith("[CLS]assistant\n")


def test_prompt_and_answer_columns_become_a_chat(chatty):
    task, spec = task_of(template="Say it: {text}", chat=True), InputSpec(chatty, "decoder", 96)
    (feature,) = task.encode(Examples({"text": ["light"]}, ["So be it"]), spec, training=True)
    assert chatty.decode(feature["input_ids"]) == "[CLS]user\nSay it: light[SEP][CLS]assistant\nSo be it[SEP]"
    long = Examples({"text": ["let there be light " * 60]}, ["So be it"])
    (feature,) = task.encode(long, spec, training=True)
    text = chatty.decode(feature["input_ids"])
    assert feature["cut"] and len(feature["input_ids"]) <= 96
    assert text.startswith("[CLS]user\nSay it: let") and text.endswith("[CLS]assistant\nSo be it[SEP]")


def test_a_long_conversation_loses_its_start(chatty):
    talk = [{"role": "user", "content": f"let there be light {i}"} for i in range(40)]
    task, spec = task_of(messages="messages", max_target=8), InputSpec(chatty, "decoder", 64)
    (feature,) = task.encode(Examples({"messages": [talk]}, [None]), spec)
    assert feature["cut"] and len(feature["input_ids"]) == 56
    assert chatty.decode(feature["input_ids"]).endswith("light 39[SEP][CLS]assistant\n")


def test_without_a_template_each_message_is_a_line(tiny_tokenizers):
    bpe = tiny_tokenizers["bpe"]
    (feature,) = task_of(messages="messages").encode(
        Examples({"messages": [TALK]}, ["Let there be light"]), InputSpec(bpe, "decoder", 256), training=True
    )
    text = bpe.decode(feature["input_ids"], skip_special_tokens=True)
    assert text == "user: Who said it?\nassistant: God\nuser: And what was it?\nassistant: Let there be light"


def test_a_decoder_learns_the_reply(chatty, decoder_folder, tmp_path):
    """A few steps on one conversation lower the loss of its reply."""
    task = task_of(messages="messages")
    model = CheckpointFolder(decoder_folder("gpt2"), task, 0).pretrained()
    model.resize_token_embeddings(max(len(chatty), model.config.vocab_size))
    spec = InputSpec(chatty, "decoder", 96)
    batch = task.collate(task.encode(Examples({"messages": [TALK]}, ["Let there be light"]), spec, training=True), spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = task.loss(model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    "talk", ["hello", [], [{"role": "user"}], TALK[1:2], [{"role": "user", "content": "No reply"}]]
)
def test_a_row_that_is_no_conversation_is_named(talk, tmp_path):
    lines = [json.dumps({"messages": messages}) for messages in (talk, talk)]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"messages.*list of messages, each \{role"):
        labelled.read(tmp_path / "talks.jsonl", task_of(messages="messages").columns("train"))


def test_a_reply_is_a_text():
    with pytest.raises(ValidationError, match="messages is set, but gold is 'label'"):
        task_of(messages="messages", gold="label")
