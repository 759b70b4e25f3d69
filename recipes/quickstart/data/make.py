"""Rebuild the quickstart's text and labelled sets from a plain dump of the King James Bible.

The dump has one verse a line, `Ge1:1 In the beginning God created ...`. On Debian or Ubuntu:

    apt-get install bible-kjv bible-kjv-text
    bible -f gen1:1-rev22:21 > kjv.dump
    python recipes/quickstart/data/make.py kjv.dump

Whole chapters go to one of three splits, so that neighbouring verses never face each other across one.
Only the training chapters become pre-training text: what a model scores on validation and test is then
not helped by having read the very verses.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headstart.core.errors import DataError
from headstart.core.randomness import fraction, generator, permute

SEED = 0
VERSES, CHAPTERS = 31_102, 1_189
ROWS = {"train": 2_000, "validation": 500, "test": 1_000}
HELD_OUT = {"test": 0.10, "validation": 0.06}
SHORTEST_VERSE_WORDS = 8
RUN_WORDS = 5
SHARED_RUNS_MOST = 0.5
SWAPS = 3

BOOKS_OF_KIND = {
    "law": "Ge Exo Lev Num Deu",
    "history": "Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est Acts",
    "poetry": "Job Psa Prv Eccl SSol",
    "prophecy": "Isa Jer Lam Eze Dan Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal Rev",
    "gospel": "Mat Mark Luke John",
    "letter": "Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude",
}
KIND_OF_BOOK = {book: kind for kind, books in BOOKS_OF_KIND.items() for book in books.split()}
KINDS = tuple(BOOKS_OF_KIND)
ORDERS = ("written", "disordered")

_LINE = re.compile(r"([1-3]?[A-Za-z]+)(\d+):(\d+) (.+)")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_WITH_PUNCTUATION = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


class Verse(NamedTuple):
    """One verse, its chapter's name in the dump and the kind of book it stands in."""

    chapter: str
    kind: str
    text: str


def read_dump(path: Path) -> list[Verse]:
    """Return the verses of a dump in its order; anything but the whole text is refused."""
    verses = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[1] not in KIND_OF_BOOK:
            raise DataError(
                f"line {number} of {path} is {line[:60]!r}",
                allowed="Each line holds a known book's name, chapter:verse, a space and the verse",
                do="Make the dump as the head of make.py says",
            )
        verses.append(Verse(match[1] + match[2], KIND_OF_BOOK[match[1]], " ".join(match[4].split())))
    chapters = len({verse.chapter for verse in verses})
    if (len(verses), chapters) != (VERSES, CHAPTERS):
        raise DataError(
            f"{path} holds {len(verses):,} verses in {chapters:,} chapters",
            allowed=f"The whole text has {VERSES:,} verses in {CHAPTERS:,} chapters",
            do="Make the dump as the head of make.py says",
        )
    return verses


def split_chapters(verses: Iterable[Verse]) -> dict[str, str]:
    """Return the split of every chapter: of each kind of book the same share of chapters is held out."""
    chapters_of_kind: defaultdict[str, set[str]] = defaultdict(set)
    for verse in verses:
        chapters_of_kind[verse.kind].add(verse.chapter)
    split_of = {}
    for chapters in chapters_of_kind.values():
        waiting = sorted(chapters, key=lambda chapter: fraction(chapter, SEED, "split"))
        for split, share in HELD_OUT.items():
            count = round(share * len(chapters))
            split_of.update(dict.fromkeys(waiting[:count], split))
            waiting = waiting[count:]
        split_of.update(dict.fromkeys(waiting, "train"))
    return split_of


def words(text: str) -> tuple[str, ...]:
    """Return the lowercased words of a text without punctuation."""
    return tuple(_WORD.findall(text.lower()))


def bag(text: str) -> tuple[str, ...]:
    """Return the words without their order: texts with equal bags are duplicates, a disordered verse's too.

    Exodus has "Six days shalt thou labour", Deuteronomy "Six days thou shalt labour".
    """
    return tuple(sorted(words(text)))


def runs(text: str) -> set[tuple[str, ...]]:
    """Return every run of five words in a text."""
    found = words(text)
    return {found[start : start + RUN_WORDS] for start in range(len(found) - RUN_WORDS + 1)}


def usable(verses: Sequence[Verse], split_of: Mapping[str, str]) -> dict[str, list[Verse]]:
    """Return per split the verses that may be labelled: long enough, once each, and told nowhere else.

    Parallel accounts (Samuel and Chronicles, the first three gospels) repeat each other nearly word for
    word, so a verse half of whose runs occur in another split's chapters is left out, not only an exact copy.
    """
    splits_of_run: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    splits_of_bag: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for verse in verses:
        splits_of_bag[bag(verse.text)].add(split_of[verse.chapter])
        for run in runs(verse.text):
            splits_of_run[run].add(split_of[verse.chapter])
    kept: dict[str, list[Verse]] = {split: [] for split in ROWS}
    seen: set[tuple[str, ...]] = set()
    for verse in verses:
        key = bag(verse.text)
        own_runs = runs(verse.text)
        shared = sum(len(splits_of_run[run]) > 1 for run in own_runs)
        error_from_dict = len(splits_of_bag[key]) > 1 or shared >= SHARED_RUNS_MOST * len(own_runs)
        if len(key) >= SHORTEST_VERSE_WORDS and key not in seen and not error_from_dict:
            kept[split_of[verse.chapter]].append(verse)
        seen.add(key)
    return kept


def shuffled(count: int, purpose: str) -> Iterator[int]:
    """Yield the numbers below a count in an order fixed by the purpose."""
    return (int(place) for place in permute(range(count), count, SEED, 0, purpose))


def kind_rows(verses: Sequence[Verse], split: str) -> list[tuple[str, str]]:
    """Draw (verse, kind of book) rows, the kinds as even as the count allows, in shuffled order."""
    rows = []
    for place, kind in enumerate(KINDS):
        of_kind = [verse for verse in verses if verse.kind == kind]
        wanted = ROWS[split] // len(KINDS) + (place < ROWS[split] % len(KINDS))
        order = list(shuffled(len(of_kind), f"kind/{split}/{kind}"))[:wanted]
        rows += [(of_kind[index].text, kind) for index in order]
    return [rows[index] for index in shuffled(len(rows), f"kind/{split}")]


def order_rows(verses: Sequence[Verse], split: str) -> list[tuple[str, str]]:
    """Draw (text, written or disordered) rows in turn; each verse is used once, in one of the two states."""
    rows: list[tuple[str, str]] = []
    for index in shuffled(len(verses), f"order/{split}"):
        label = ORDERS[len(rows) % 2]
        # A verse without room for the swaps is passed over in both states, or its length would tell the label.
        changed = disorder(verses[index].text, index, split)
        if changed is not None:
            rows.append((changed if label == "disordered" else verses[index].text, label))
        if len(rows) == ROWS[split]:
            break
    return [rows[index] for index in shuffled(len(rows), f"order/{split}/rows")]


def disorder(text: str, index: int, purpose: str) -> str | None:
    """Swap neighbouring words at three places of a verse, or return None where there is no room for it.

    Punctuation keeps its place and no swap crosses it, nor touches a sentence's first word, so that nothing
    but the order of the words is changed: counts of words, capitals and commas say nothing.
    """
    tokens = [match.groups() for token in text.split() if (match := _WITH_PUNCTUATION.fullmatch(token))]
    first = {0} | {place + 1 for place, token in enumerate(tokens) if set(token[2]) & set(".?!")}
    room = [
        place
        for place in range(len(tokens) - 1)
        if place not in first
        and not tokens[place][2]
        and not tokens[place + 1][0]
        and tokens[place][1].lower() != tokens[place + 1][1].lower()
    ]
    chosen: list[int] = []
    for place in generator(SEED, 0, index, f"swap/{purpose}").permutation(room):
        if all(abs(place - other) > 1 for other in chosen):
            chosen.append(int(place))
        if len(chosen) == SWAPS:
            break
    else:
        return None
    cores = [token[1] for token in tokens]
    for place in chosen:
        cores[place], cores[place + 1] = cores[place + 1], cores[place]
    return " ".join(before + core + after for (before, _, after), core in zip(tokens, cores, strict=True))


def write_text(path: Path, verses: Iterable[Verse]) -> None:
    """Write chapters as documents: a verse a line, a blank line between chapters, gzipped without a date."""
    chapters: defaultdict[str, list[str]] = defaultdict(list)
    for verse in verses:
        chapters[verse.chapter].append(verse.text)
    text = "\n\n".join("\n".join(chapter) for chapter in chapters.values()) + "\n"
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def write_rows(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write labelled rows as CSV with a header."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("text", "label"))
        writer.writerows(rows)


def main() -> None:
    """Read the dump named on the command line and write every file beside this script, or where told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, help="the plain text, one verse a line")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write to")
    arguments = parser.parse_args()
    verses = read_dump(arguments.dump)
    split_of = split_chapters(verses)
    write_text(arguments.output / "kjv.txt.gz", (verse for verse in verses if split_of[verse.chapter] == "train"))
    for split, of_split in usable(verses, split_of).items():
        write_rows(arguments.output / f"kind-{split}.csv", kind_rows(of_split, split))
        write_rows(arguments.output / f"order-{split}.csv", order_rows(of_split, split))


if __name__ == "__main__":
    main()
