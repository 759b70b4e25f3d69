"""Hostile recipes and overrides get a sentence within two seconds, and nothing in them is executed."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from headstart import cli
from headstart.verbs import by_verb

from . import recipes
from .recipes import Attack

ATTACKS = recipes.attacks()
SECONDS = 2.0
IN_A_PROCESS = (
    "a list of 6 MB", "a billion laughs", "an unset variable", "a pipe", "the path '/proc/self/mem'", "UTF-16",
    "a value !!python/object/apply:os.system", "the override 'a..b=1'",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Import what the first valid section imports, so that no attack is charged for it."""
    from headstart.core import registry

    by_verb()
    for group, name in (
        ("objectives", "masked_lm"),
        ("tasks", "classify"),
        ("backbones", "encoder"),
        ("adaptations", "full"),
    ):
        registry.resolve(group, name)


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(recipes.VARIABLE, recipes.SECRET)
    monkeypatch.delenv("HEADSTART_DEBUG", raising=False)


def assert_refused(code: int, out: str, err: str) -> None:
    assert code == 2, err[:2000]
    assert err.startswith("headstart: "), err[:2000]
    assert "Traceback" not in err and "nternal error" not in err and "fault of ours" not in err, err[:2000]
    assert len(err) < 8000, "a message fits on a screen"
    sentences = re.split(r"[.?!](?:\s|$)|\n", err.strip())
    assert len([sentence for sentence in sentences if sentence.strip()]) >= 2, f"what is wrong, and what to do: {err}"
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", err), "no control characters reach the terminal"
    assert recipes.SECRET not in out + err and recipes.SECRET.partition("/")[0] not in out + err


def test_the_attacks_are_many_and_the_same_every_time():
    assert len(ATTACKS) >= recipes.COUNT
    again = recipes.attacks()
    assert [attack.name for attack in ATTACKS] == [attack.name for attack in again]
    plain = [(a, b) for a, b in zip(ATTACKS, again, strict=True) if not callable(a.recipe)]
    assert all(a.recipe == b.recipe and a.overrides == b.overrides for a, b in plain)
    assert {attack.family for attack in ATTACKS} == {family.__name__ for family in recipes.FAMILIES}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{attack.family}: {attack.name}")
def test_an_attack_gets_a_sentence(attack: Attack, tmp_path, capsys):
    arguments = attack.arguments(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    started = time.process_time()
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    seconds = time.process_time() - started
    out, err = capsys.readouterr()
    assert_refused(stopped.value.code, out, err)
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing was executed or written"
    assert seconds < SECONDS


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_an_attack_on_the_command_gets_a_sentence(name, tmp_path):
    attack = next(attack for attack in ATTACKS if attack.name.startswith(name))
    command = [sys.executable, "-m", "headstart", *attack.arguments(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert_refused(ended.returncode, ended.stdout, ended.stderr)
    assert not (tmp_path / recipes.CANARY).exists()
