"""Data sets of a hub on 127.0.0.1, with the real `datasets`. Its variables are read once, hence the processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.checkpoint.local_hub import LocalHub

pytest.importorskip("datasets", reason="pip install datasets")
NAME = "datasets/org/reviews"
CARD = """---
configs:
- config_name: small
  data_files:
  - {split: train, path: small/train-*}
  - {split: test, path: small/test-*}
- config_name: large
  data_files: large/all.csv
dataset_info:
- config_name: large
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names: {'0': bad, '1': good}
---
# Reviews
"""
SCRIPT = """
import json, sys
from headstart.core.errors import HeadstartError
from headstart.tasks import tables
from headstart.tasks.table_files import DatasetSplit, locate
for call in sys.argv[1:]:
    try:
        located = locate(DatasetSplit(*json.loads(call)))
        table, _ = tables.read(located)
        print(json.dumps({"rows": table.to_pylist(), "hash": located.sha256(), "name": str(located)}))
    except HeadstartError as error:
        print(json.dumps({"error": str(error)}))
"""


def parquet(texts, labels):
    feature = {"info": {"features": {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}}}}
    schema = pa.schema([("text", pa.string()), ("label", pa.int64())], {b"huggingface": json.dumps(feature).encode()})
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "label": labels}, schema), buffer)
    return buffer.getvalue()


FILES = {
    "README.md": CARD.encode(),
    "small/train-00000-of-00002.parquet": parquet(["a", "b"], [0, 1]),
    "small/train-00001-of-00002.parquet": parquet(["c"], [1]),
    "small/test-00000-of-00001.parquet": parquet(["d"], [0]),
    "large/all.csv": b"text,label\ne,1\nf,0\n",
    "reviews.py": b"raise SystemExit('code of a data set was run')",
}


@pytest.fixture
def hub():
    with LocalHub().running() as hub:
        yield hub


@pytest.fixture
def read(hub, tmp_path):
    """Read splits in a new process."""
    return lambda *calls, **variables: hub.call(SCRIPT, calls, tmp_path, **variables)


def test_the_files_of_a_configuration_are_downloaded_and_their_classes_have_names(hub, read, tmp_path):
    commit = hub.commit(NAME, FILES)
    train, test = read([f"org/reviews@{commit}", "train", "small"], [f"org/reviews@{commit}", "test", "small"])
    assert train["rows"] == [
        {"text": "a", "label": "bad"}, {"text": "b", "label": "good"}, {"text": "c", "label": "good"},
    ]  # fmt: skip
    assert test["rows"] == [{"text": "d", "label": "bad"}] and train["hash"] != test["hash"]
    downloaded = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_symlink()}
    assert downloaded == {name.split("/")[-1] for name in FILES if name.startswith(("README", "small"))}
    (large,) = read(["org/reviews", "train", "large"])
    assert large["rows"] == [{"text": "e", "label": "good"}, {"text": "f", "label": "bad"}], "classes of the card"


def test_the_rows_are_those_of_datasets(hub, read, tmp_path):
    commit = hub.commit(NAME, FILES)
    folder = tmp_path / "local"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    script = (
        "import datasets, json, sys; d = datasets.load_dataset(sys.argv[1], sys.argv[2], split='train'); "
        "print(json.dumps([[row['text'], d.features['label'].int2str(row['label'])] for row in d]))"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path / "other"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), "small"],
        check=True, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    local, remote = read([str(folder), "train", "small"], [f"org/reviews@{commit}", "train", "small"])
    assert [[row["text"], row["label"]] for row in local["rows"]] == json.loads(done.stdout)
    assert remote["rows"] == local["rows"]


def test_a_pinned_data_set_in_the_cache_opens_without_a_request(hub, read):
    commit = hub.commit(NAME, FILES)
    call = [f"org/reviews@{commit}", "train", "small"]
    first = read(call)
    hub.commit(NAME, {**FILES, "small/train-00001-of-00002.parquet": parquet(["z"], [0])})
    hub.requests.clear()
    assert read(call) == read(call, HF_HUB_OFFLINE="1") == first
    assert not hub.requests


def test_an_interrupted_download_is_completed(hub, read, tmp_path):
    commit = hub.commit(NAME, FILES)
    call = [f"org/reviews@{commit}", "train", "small"]
    first = read(call)
    (lost,) = (tmp_path / "cache").rglob("train-00001-of-00002.parquet")
    lost.unlink()
    offline = read(call, HF_HUB_OFFLINE="1")
    assert "not in the local cache" in offline[0]["error"], "never half of the rows"
    assert read(call) == first


def test_what_cannot_be_had_is_said(hub, read):
    hub.commit(NAME, FILES)
    hub.commit("datasets/org/script", {"script.py": b"raise SystemExit", "README.md": b"# Made by code"})
    errors = [answer["error"] for answer in read(
        ["org/missing", "train"], ["org/reviews", "train"], ["org/reviews", "train", "huge"],
        ["org/reviews", "dev", "small"], ["org/script", "train"],
    )]  # fmt: skip
    assert "has no such data set" in errors[0]
    assert "several configurations" in errors[1] and "small, large" in errors[1]
    assert "no configuration 'huge'" in errors[2]
    assert "no split 'dev'" in errors[3] and "train, test" in errors[3]
    assert "has no tables" in errors[4] and "org/script@refs/convert/parquet" in errors[4]


def test_without_the_library_there_is_a_command(tmp_path):
    blocked = "import sys; sys.modules['datasets'] = None\n" + SCRIPT
    done = subprocess.run(
        [sys.executable, "-c", blocked, json.dumps([str(tmp_path), "train"])],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "pip install" in json.loads(done.stdout)["error"] and "datasets" in done.stdout
