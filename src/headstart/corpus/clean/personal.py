"""Personal data: e-mail and IP addresses, phone and card numbers and keys are replaced by placeholders and counted.

A native expression selects the texts that may contain personal data. Only those are searched with Python's patterns,
and a function checks what a pattern cannot (the check digit of a card, a private IP address).
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from headstart.core.config import Section
from headstart.corpus.parts.engine import evaluate
from headstart.corpus.parts.steps import StepOutput, as_array, replace_where, with_text

Kind = Literal["email", "ip", "phone", "card", "key"]


class PersonalConfig(Section):
    """Which personal data are replaced."""

    replace: list[Kind] = Field(
        ["email", "key", "card", "ip", "phone"],
        description="kinds to replace, by <EMAIL>, <KEY>, <CARD> and so on",
    )


@dataclass(frozen=True)
class _Pattern:
    gate: str
    """A cheap native pattern that occurs in every text with data of this kind."""
    pattern: re.Pattern[str]
    is_valid: Callable[[str], bool] = lambda _: True


def _is_public(address: str) -> bool:
    """Return True if an IP address is public: not private, reserved, or invalid."""
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _passes_luhn(number: str) -> bool:
    digits = [int(digit) for digit in number if digit.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _is_phone(number: str) -> bool:
    """Return True for 8 to 15 digits (E.164) that are not a range of years."""
    digits = re.sub(r"\D", "", number)
    if not 8 <= len(digits) <= 15:
        return False
    return not re.fullmatch(r"\(?(?:1[0-9]|20)\d{2}\)?[ .–-]+(?:1[0-9]|20)\d{2}", number)


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_PATTERNS: dict[Kind, _Pattern] = {
    "email": _Pattern(
        r"@[A-Za-z0-9]",
        re.compile(
            r"(?<![\w.+%-])[A-Za-z0-9](?:[A-Za-z0-9._%+'-]{0,62}[A-Za-z0-9_+-])?@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}\b"
        ),
    ),
    "key": _Pattern(
        r"AKIA|ASIA|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abprs]-|sk-[A-Za-z0-9]|sk_live_|rk_live_|AIza|hf_[A-Za-z0-9]"
        r"|eyJ[A-Za-z0-9_-]{8}|-----BEGIN",
        re.compile(
            # A block ends before the next one starts, and the parts of a token are bounded and never read again, so
            # that many starts without an end do not take quadratic time.
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----BEGIN ).)*?-----END [A-Z ]*PRIVATE KEY-----"
            r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
            r"|\b(?:ghp|gho|ghs)_[A-Za-z0-9]{36}\b|\bgithub_pat_[A-Za-z0-9_]{22,}\b|\bglpat-[A-Za-z0-9_-]{20,}"
            r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
            r"|\bsk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}|\b[sr]k_live_[A-Za-z0-9]{16,}\b"
            r"|\bAIza[0-9A-Za-z_-]{35}|\bhf_[A-Za-z0-9]{30,}\b"
            r"|\beyJ[A-Za-z0-9_-]{8,1024}+\.[A-Za-z0-9_-]{8,16384}+\.[A-Za-z0-9_-]{8,}",
            re.DOTALL,
        ),
    ),
    "card": _Pattern(
        r"[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}|3[47][0-9]{2}[ -]?[0-9]{6}",
        re.compile(
            r"(?<![\w.,-])(?:(?:4[0-9]{3}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|6(?:011|5[0-9]{2}))(?:[ -]?[0-9]{4}){3}"
            r"|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})(?![\w-])"
        ),
        _passes_luhn,
    ),
    "ip": _Pattern(
        r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[0-9A-Fa-f]{1,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]",
        re.compile(
            rf"(?<![\w.:-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.\w)"
            r"|(?<![\w.:-])(?:[0-9A-Fa-f]{1,4}:){2,7}(?::?[0-9A-Fa-f]{1,4}){1,7}(?![\w:])"
        ),
        _is_public,
    ),
    "phone": _Pattern(
        r"\+[1-9][0-9]{0,2}[ .–-]?\(?[0-9]|\(0?[0-9]{2,4}\)[ .–-]?[0-9]{3}|[2-9][0-9]{2}[-.][0-9]{3}[-.][0-9]{4}"
        r"|0[0-9]{2,4}[ -][0-9]{3,4}[ -][0-9]{3}",
        re.compile(
            r"(?<![\w.,/-])(?:"
            r"\+[1-9][0-9]{0,2}[ .–-]?(?:\(?[0-9]{1,4}\)?[ .–-]?){2,5}[0-9]{2,4}"  # +44 20 7946 0958
            r"|\(0?[0-9]{2,4}\)[ .–-]?[0-9]{3,5}[ .–-]?[0-9]{3,4}"  # (020) 7946 0958
            r"|[2-9][0-9]{2}[-.][0-9]{3}[-.][0-9]{4}"  # 212-555-0123
            r"|0[0-9]{2,4}[ -][0-9]{3,4}[ -][0-9]{3,4}"  # 020 7946 0958
            r")(?![\w/]|[.,-][0-9])"
        ),
        _is_phone,
    ),
}


class Personal:
    """Replace personal data by typed placeholders; no document is dropped."""

    name = "personal"

    def __init__(self, config: PersonalConfig) -> None:
        """Select the kinds of personal data that the recipe replaces."""
        self.kinds = [kind for kind in _PATTERNS if kind in config.replace]

    def apply(self, table: pa.Table) -> StepOutput:
        """Return the batch with placeholders, and the number of replacements of each kind."""
        from daft import col
        from daft.functions import regexp

        counts: Counter[str] = Counter()
        gates: dict[str, Any] = {kind: regexp(col("text"), _PATTERNS[kind].gate) for kind in self.kinds}
        if not gates:
            return StepOutput(table)
        flags = evaluate(table.select(["text"]), gates)
        suspect = flags[self.kinds[0]]
        for kind in self.kinds[1:]:
            suspect = pc.or_(suspect, flags[kind])
        if not pc.any(suspect).as_py():
            return StepOutput(table, counts=counts)
        suspect = as_array(suspect)
        columns = [flags[kind].filter(suspect).to_pylist() for kind in self.kinds]
        replaced = []
        for text, *row in zip(table["text"].filter(suspect).to_pylist(), *columns, strict=True):
            kinds = [kind for kind, flag in zip(self.kinds, row, strict=True) if flag]
            replaced.append(replace(text, kinds, counts))
        return StepOutput(with_text(table, replace_where(table["text"], suspect, replaced)), counts=counts)


def mask(text: str, config: PersonalConfig) -> str:
    """Return one text with the placeholders that `Personal` puts into a batch."""
    return replace(text, [kind for kind in _PATTERNS if kind in config.replace], Counter())


def replace(text: str, kinds: list[Kind], counts: Counter[str]) -> str:
    """Replace personal data of the given kinds, and count the replacements."""
    for kind in kinds:
        definition, replaced = _PATTERNS[kind], 0

        def placeholder(
            match: re.Match[str], is_valid: Callable[[str], bool] = definition.is_valid, kind: str = kind
        ) -> str:
            nonlocal replaced
            if not is_valid(match[0]):
                return match[0]
            replaced += 1
            return f"<{kind.upper()}>"

        text = definition.pattern.sub(placeholder, text)
        if replaced:
            counts[kind] += replaced
            counts[f"documents with {kind}"] += 1
    return text
