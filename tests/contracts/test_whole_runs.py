"""Every objective in a whole run: two lengths of rows, two corpora, then on from its own checkpoint with new words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contracts.conftest import pairings

import headstart
from headstart.core import artifact, registry

TERMS = ("cardiomyopathy", "immunoglobulin", "thrombocytopenia")
FIRST_KINDS = {(objective, family): kind for objective, family, kind in reversed(list(pairings()))}


@pytest.fixture(scope="module")
def texts(verses: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of a dozen verses, some of them with words of another domain."""
    folder = tmp_path_factory.mktemp("texts")
    documents = [" ".join(verses[start : start + 12]) for start in range(0, 1200, 12)]
    new = [f"{text} The {TERMS[n % 3]} of {TERMS[n % 2]}." for n, text in enumerate(documents)]
    for name, some in (("a", documents), ("b", documents[50:]), ("new", new)):
        (folder / f"{name}.txt").write_text("\n\n".join(some), encoding="utf-8")
    return folder


def recipe(texts: Path, output: Path, **sections: Any) -> dict[str, Any]:
    training = {
        "budget": "4 steps", "batch_tokens": 256, "eval_count": 1,
        "seq_length": [{"length": 32, "share": 0.5}, {"length": 64, "share": 0.5}],
    }  # fmt: skip
    return {"output": str(output), "training": training, **sections}


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "family"), sorted(FIRST_KINDS), ids=lambda value: value)
def test_lengths_corpora_and_going_on(objective, family, texts, checkpoint, tiny_tokenizer, tmp_path):
    fields = registry.resolve("objectives", objective).Config.model_fields
    section: dict[str, Any] = {"name": objective}
    if "family" in fields:
        section["family"] = family
    tokenizer: dict[str, Any] = {"vocab_size": 500}
    if "teacher" in fields:
        section["teacher"] = str(checkpoint(family, FIRST_KINDS[objective, family]))
        tokenizer = {"path": section["teacher"]}
    parts = [{"name": name, "files": [str(texts / f"{name}.txt")], "validation": 0.2} for name in ("a", "b")]
    first = recipe(
        texts, tmp_path / "first", objective=section, tokenizer=tokenizer,
        backbone={"family": family, "size": "tiny"}, corpus={"parts": parts, "exponent": 0.5},
    )  # fmt: skip
    folder = headstart.pretrain(first, quiet=True)
    facts = artifact.verify(folder)
    assert facts["progress"]["steps"] == 4 and {"loss", "loss/a", "loss/b"} <= set(facts["metrics"]["validation"])
    # A student reads the tokens of its teacher, who has not learnt the new ones.
    extend = {} if "teacher" in fields else {"extend": 3}
    again = recipe(
        texts, tmp_path / "again", objective=section, tokenizer=extend,
        backbone={"family": "checkpoint", "path": str(folder)},
        corpus={"files": [str(texts / "new.txt")], "validation": 0.2},
    )  # fmt: skip
    onward = artifact.verify(headstart.pretrain(again, quiet=True))
    assert onward["parents"]["checkpoint"] == artifact.identity(folder)
    assert onward["architecture"] == facts["architecture"]
    assert (onward["parameters"] > facts["parameters"]) == bool(extend)
    loss = headstart.evaluate(tmp_path / "again", texts / "a.txt")["loss"]
    assert 0 < loss < 20 * facts["metrics"]["validation"]["loss"]
