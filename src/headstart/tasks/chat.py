"""Conversations as rows: the messages before a reply are the source, and the last reply is the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headstart.core.data import ColumnKind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPLIES = "assistant"
_FORM = "a list of messages, each {role: …, content: …}"


def _are_messages(value: Any) -> bool:
    """Return whether a value is a list of messages, at least one of which is not a reply."""
    return (
        isinstance(value, list)
        and all(isinstance(m, dict) and all(isinstance(m.get(k), str) for k in ("role", "content")) for m in value)
        and any(message["role"] != _REPLIES for message in value)
    )


def before_reply(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the messages without the last one, if that is a reply."""
    kept = messages[:-1] if messages[-1]["role"] == _REPLIES else messages
    return [{"role": message["role"], "content": message["content"]} for message in kept]


MESSAGES = ColumnKind(f"{_FORM}, and not only replies", _are_messages)
REPLY = ColumnKind(
    f"{_FORM}, of which the last has the role {_REPLIES}",
    lambda value: _are_messages(value) and value[-1]["role"] == _REPLIES,
    convert=lambda value: str(value[-1]["content"]),
)


def has_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer has a chat template."""
    return bool(tokenizer.chat_template)


def render(messages: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a conversation as text up to the start of the reply, by the tokenizer's chat template.

    Without a template, each message is a line with its role, and the last line is the role of the reply.
    """
    if not has_template(tokenizer):
        return "\n".join([*(f"{m['role']}: {m['content']}" for m in messages), f"{_REPLIES}:"])
    rendered = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)  # type: ignore[arg-type]
    return str(rendered)
