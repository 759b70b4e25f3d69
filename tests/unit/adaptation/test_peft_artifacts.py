"""Saved adapters in another process, by peft and transformers alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from headstart.core import registry

SCRIPT = """
import json, sys
from safetensors.torch import load_file, save_file
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

folders, batch = json.loads(sys.argv[1]), load_file(sys.argv[2])
said = {}
for name, (checkpoint, folder) in folders.items():
    if name == "adapters":
        assert not any(module.startswith("headstart") for module in sys.modules)
        import headstart.adaptation.adapters
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=3, eos_token_id=3)
    said[name] = PeftModel.from_pretrained(model, folder).eval()(**batch).logits.detach().contiguous()
save_file(said, sys.argv[3])
"""


@pytest.mark.slow
def test_another_process_says_the_same_with_peft_alone(pretrained, tmp_path):
    """Our own bottlenecks need one import of ours besides, and come last for that."""
    folders, said = {}, {}
    for name in ("lora", "ia3", "prefix", "prompt", "adapters"):
        given = pretrained("bert")
        method = registry.build("adaptations", registry.resolve("adaptations", name).Config())
        model = method.adapt(given.source)
        given.train(model)
        said[name] = given.outputs(model)
        method.finish(model).save_pretrained(str(tmp_path / name))
        folders[name] = (str(given.folder), str(tmp_path / name))
    batch, found = tmp_path / "batch.safetensors", tmp_path / "said.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in given.batch.items()}, batch)
    arguments = [sys.executable, "-c", SCRIPT, json.dumps(folders), str(batch), str(found)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr
    for name, logits in load_file(found).items():
        assert (logits - said[name]).abs().max() < 1e-5, name
