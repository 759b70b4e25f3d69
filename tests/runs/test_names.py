"""A checkpoint from a folder and from a hub on 127.0.0.1 give the same model, also if the hub moves on before a resume."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.runs.conftest import QUICKSTART, TINY_FINETUNE, Finished
from tests.unit.checkpoint.local_hub import LocalHub


@pytest.mark.slow
def test_the_same_weights_from_a_folder_and_from_the_hub(pretrained: Finished, finetuned: Finished, tmp_path: Path):
    hub = LocalHub()
    server = hub.serve()
    files = {path.name: path.read_bytes() for path in pretrained.folder.iterdir() if path.is_file()}
    # The record of the pre-training belongs to its own run.
    files.pop("recipe.yaml")
    commit = hub.commit("org/model", files)
    output = tmp_path / "finetuned"
    command = [
        sys.executable, "-m", "headstart", "finetune", str(QUICKSTART / "finetune.yaml"), *TINY_FINETUNE,
        f"output={output}", "model=org/model",
    ]  # fmt: skip
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_address[1]}", "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    environment.pop("HF_HUB_CACHE", None)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
        )

    try:
        done = run()
        assert done.returncode == 0, done.stderr
        assert (output / "model.safetensors").read_bytes() == (finetuned.folder / "model.safetensors").read_bytes()
        assert yaml.safe_load((output / "recipe.yaml").read_text())["model"] == f"org/model@{commit}"
        assert commit in (output / "headstart.json").read_text()
        hub.commit("org/model", {**files, "config.json": b"{}"})
        again = run()
        assert again.returncode == 0, again.stderr
        assert again.stdout == done.stdout, "the run is finished, whatever the branch is at now"
    finally:
        server.shutdown()
        server.server_close()
