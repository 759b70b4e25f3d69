"""With `quiet`, no verb prints anything: no bars, no reports of libraries."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json, sys
import headstart

pretrain, continued, full, lora = json.loads(sys.argv[1])
headstart.pretrain(pretrain, quiet=True)
headstart.pretrain(continued, quiet=True)
headstart.finetune(full, quiet=True)
run = headstart.finetune(lora, quiet=True)
headstart.load(run)
headstart.evaluate(run, lora["data"]["test"])
"""


def test_nothing_is_printed(way, recipe_of, tmp_path):
    base = tmp_path / "pretrained"
    backbone = {"family": "checkpoint", "path": str(base)}
    recipes = [
        recipe_of["pretrain"](way, output=str(base)),
        recipe_of["pretrain"](way, output=str(tmp_path / "continued"), backbone=backbone),
        recipe_of["finetune"](way, output=str(tmp_path / "full"), model=str(base)),
        recipe_of["finetune"](way, output=str(tmp_path / "lora"), model=str(base), adaptation={"name": "lora"}),
    ]
    arguments = [sys.executable, "-c", SCRIPT, json.dumps(recipes)]
    done = subprocess.run(
        arguments, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": ""}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
