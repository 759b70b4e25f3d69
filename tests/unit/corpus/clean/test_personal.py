"""Personal data in 1,000 labeled strings: half contain one kind of it, half only look similar."""

from __future__ import annotations

import random
import time
from collections import Counter

import pyarrow as pa
import pytest

pytest.importorskip("daft", reason="the corpus engine is missing; pip install 'headstart[corpus]'")

from headstart.corpus.clean.personal import Personal, PersonalConfig

KINDS = ("email", "ip", "phone", "card", "key")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
SENTENCES = (
    "Write to {} if you can.", "{}", "It was {}, she said.", "See ({}) for more.", "contact: {}\nthanks", "<{}>",
    '"{}"',
)  # fmt: skip


def luhn(digits: str) -> str:
    doubled = [2 * int(d) - 9 * (int(d) > 4) for d in digits[::-2]]
    return digits + str(-(sum(doubled) + sum(map(int, digits[-2::-2]))) % 10)


def personal(kind: str, rng: random.Random) -> str:
    """Return personal data of a kind, in a common notation."""
    digits = lambda n: "".join(str(rng.randrange(10)) for _ in range(n))  # noqa: E731
    signs = lambda n: "".join(rng.choice(LETTERS) for _ in range(n))  # noqa: E731
    if kind == "email":
        name = rng.choice(["ann.lee", "j_smith", "info", "x+tag", "o'neil", "a", "Max-Muster", "q1w2e3"])
        host = rng.choice(["mail", "uni-ulm", "a.b.example", "x1"])
        return f"{name}@{host}.{rng.choice(['com', 'de', 'museum', 'co.uk'])}"
    if kind == "ip":
        if rng.random() < 0.3:
            return f"2001:4860:{rng.randrange(1, 65535):x}:{rng.randrange(1, 65535):x}::8888"
        first = rng.choice([8, 23, 81, 155, 193])
        return f"{first}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"
    if kind == "phone":
        return rng.choice(
            [
                f"+44 20 7946 0{digits(3)}", f"+1-212-555-0{digits(3)}", f"(0{digits(2)}) {digits(4)} {digits(4)}",
                f"+49 89 {digits(3)} {digits(4)}", f"{rng.randrange(2, 9)}12-555-0{digits(3)}",
                f"+351 21 {digits(3)} {digits(4)}", f"0171 {digits(3)} {digits(4)}",
                f"+33 1 {digits(2)} {digits(2)} {digits(2)} {digits(2)}",
            ]
        )  # fmt: skip
    if kind == "card":
        number = luhn(rng.choice(["4", "51", "55", "2221", "6011"]).ljust(4, "0") + digits(11))
        mark = rng.choice([" ", "-", ""])
        return mark.join(number[i : i + 4] for i in range(0, 16, 4))
    return rng.choice(
        [
            f"AKIA{''.join(rng.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ234567') for _ in range(16))}", f"ghp_{signs(36)}",
            f"sk-{signs(48)}", f"AIza{signs(35)}", f"xoxb-{digits(12)}-{signs(24)}", f"hf_{signs(34)}",
            f"eyJ{signs(20)}.eyJ{signs(30)}.{signs(43)}",
            f"-----BEGIN RSA PRIVATE KEY-----\n{signs(64)}\n{signs(64)}\n-----END RSA PRIVATE KEY-----",
        ]
    )  # fmt: skip


def innocent(rng: random.Random) -> str:
    """Return a string that looks like personal data and is not."""
    n = rng.randrange
    return rng.choice(
        [
            f"{n(1800, 2024)}–{n(1800, 2024)}", f"{n(1, 31)}.{n(1, 12)}.{n(1900, 2024)}",
            f"{n(1900, 2024)}-{n(10, 12)}-{n(10, 28)}", f"{n(1, 999)},{n(100, 999)},{n(100, 999)}",
            f"version {n(9)}.{n(20)}.{n(9)}", f"10.{n(256)}.{n(256)}.{n(256)}", f"192.168.{n(256)}.{n(256)}",
            "127.0.0.1", f"{n(300, 999)}.{n(300, 999)}.1.2", f"ISBN 978-{n(9)}-{n(100, 999)}-{n(10000, 99999)}-{n(9)}",
            f"4{n(10**14, 10**15)}", f"@user{n(99)}", "a @ b", f"page {n(900)}-{n(900, 999)}",
            f"{n(10, 23)}:{n(10, 59)}:{n(10, 59)}", f"£{n(100)},{n(100, 999)}.{n(10, 99)}",
            f"pp. {n(100, 200)}, {n(200, 300)}, {n(300, 400)}", "sk-learn and skis", f"({n(1850, 1900)}) {n(100, 999)}",
            f"{n(10)}.{n(10**9, 10**10)}", "Genesis 1:1:3", f"ratio {n(9)}:{n(9)}", "std::vector::at",
            f"coordinates {n(90)}.{n(1000, 9999)}, {n(90)}.{n(1000, 9999)}", f"§ {n(99)}.{n(9)}.{n(9)}.{n(9)}.{n(9)}",
            "AKIA means to go", f"0.{n(100, 999)} {n(100, 999)} {n(100, 999)}", f"score {n(10, 99)}-{n(10, 99)}",
            f"tel. {n(100, 999)}",
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def labeled() -> list[tuple[str, str | None]]:
    rng = random.Random(7)
    rows: list[tuple[str, str | None]] = []
    for number in range(500):
        kind = KINDS[number % len(KINDS)]
        rows.append((rng.choice(SENTENCES).format(personal(kind, rng)), kind))
        rows.append((rng.choice(SENTENCES).format(innocent(rng)), None))
    assert len(rows) == 1000
    return rows


def test_a_thousand_labeled_strings(labeled: list[tuple[str, str | None]]) -> None:
    """Nearly all personal data is replaced by its own kind, and nearly nothing else is."""
    step = Personal(PersonalConfig())
    table = pa.table({"text": pa.array([text for text, _ in labeled], pa.large_string())})
    output = step.apply(table)
    right, missed, wrong = Counter(), list[str](), list[str]()
    for (text, kind), after in zip(labeled, output.table["text"].to_pylist(), strict=True):
        replaced = [k for k in KINDS if f"<{k.upper()}>" in after]
        if replaced == ([kind] if kind else []) and (kind or text == after):
            right[str(kind)] += 1
        elif kind:
            missed.append(f"{kind}: {text!r} → {after!r}")
        else:
            wrong.append(f"{text!r} → {after!r}")
    assert len(missed) <= 5, missed
    assert len(wrong) <= 5, wrong
    assert all(right[kind] >= 97 for kind in KINDS), right


def test_counts_placeholders_and_the_kinds_to_replace() -> None:
    text = "a@b.com wrote to a@b.com from 8.8.8.8"
    table = pa.table({"text": pa.array([text, "nothing"], pa.large_string())})
    output = Personal(PersonalConfig()).apply(table)
    assert output.table["text"].to_pylist() == ["<EMAIL> wrote to <EMAIL> from <IP>", "nothing"]
    assert output.counts == {"email": 2, "documents with email": 1, "ip": 1, "documents with ip": 1}
    assert Personal(PersonalConfig(replace=["ip"])).apply(table).table["text"][0].as_py() == text.replace(
        "8.8.8.8", "<IP>"
    )
    assert Personal(PersonalConfig(replace=[])).apply(table).table["text"][0].as_py() == text


def test_a_long_run_of_one_character_takes_linear_time() -> None:
    table = pa.table({"text": pa.array([character * 1_000_000 for character in "a1@.-+("], pa.large_string())})
    assert Personal(PersonalConfig()).apply(table).table["text"].to_pylist() == table["text"].to_pylist()


@pytest.mark.parametrize("start", ["-eyJaaaaaaaa", "-----BEGIN RSA PRIVATE KEY-----\n", "-----BEGIN A"])
def test_many_starts_of_a_key_without_an_end_take_linear_time(start: str) -> None:
    text = start * (200_000 // len(start))
    table = pa.table({"text": pa.array([text], pa.large_string())})
    started = time.process_time()
    assert Personal(PersonalConfig()).apply(table).table["text"].to_pylist() == [text]
    # Quadratic patterns took 52 s.
    assert time.process_time() - started < 10


def test_a_key_that_follows_an_open_one_is_replaced() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"
    table = pa.table({"text": pa.array([f"-----BEGIN PRIVATE KEY-----\n{key}"], pa.large_string())})
    (text,) = Personal(PersonalConfig()).apply(table).table["text"].to_pylist()
    assert text == "-----BEGIN PRIVATE KEY-----\n<KEY>"
