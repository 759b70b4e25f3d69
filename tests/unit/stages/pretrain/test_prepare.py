"""Text made ready for training, in a folder that several runs share."""

from __future__ import annotations

import subprocess
import sys
import threading

from headstart.corpus.read.readers import CorpusConfig
from headstart.stages.pretrain import prepare
from headstart.tokens import tokenizer
from headstart.tokens.tokenizer import TokenizerConfig

_RUN = """
import pathlib, sys
from headstart.corpus.read.readers import CorpusConfig
from headstart.stages.pretrain import prepare
from headstart.tokens import tokenizer
train = tokenizer.train_on
def slowly(*given):
    print("training", flush=True)
    sys.stdin.readline()
    return train(*given)
tokenizer.train_on = slowly
corpus = CorpusConfig.model_validate_json(sys.argv[1])
prepare.prepare(corpus, tokenizer.TokenizerConfig(vocab_size=600), 0, pathlib.Path("own"), quiet=True)
"""


def test_two_runs_that_share_a_folder_prepare_it_once(verses, tmp_path, monkeypatch):
    """The second comes while the first trains the tokenizer, waits for it, and reads what it has written."""
    (tmp_path / "text.txt").write_text("\n\n".join(verse for verse in verses[:1000] if verse), encoding="utf-8")
    shared = tmp_path / "shared"
    corpus = CorpusConfig(files=[str(tmp_path / "text.txt")], validation=0.1, prepared=shared)
    command = [sys.executable, "-c", _RUN, corpus.model_dump_json()]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "training\n"
    trained, found = [], []
    train = tokenizer.train_on
    monkeypatch.setattr(tokenizer, "train_on", lambda *given: trained.append(1) or train(*given))
    given = (corpus, TokenizerConfig(vocab_size=600), 0, tmp_path / "own", True)
    second = threading.Thread(target=lambda: found.append(prepare.prepare(*given)))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    first.communicate("go on\n")
    second.join(120)
    assert first.returncode == 0 and len(found) == 1 and not trained
    kinds = sorted(path.name.partition("-")[0] for path in shared.iterdir())
    assert kinds == ["tokenizer", "train", "validation"]
