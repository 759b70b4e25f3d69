"""Saved adapters load in another process, with peft and transformers alone."""

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
outputs = {}
for name, (checkpoint, folder) in folders.items():
    if name == "adapters":
        assert not any(module.startswith("headstart") for module in sys.modules)
        import headstart.adaptation.bottleneck
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=3, eos_token_id=3)
    outputs[name] = PeftModel.from_pretrained(model, folder).eval()(**batch).logits.detach().contiguous()
save_file(outputs, sys.argv[3])
"""


@pytest.mark.slow
def test_another_process_gives_the_same_outputs_with_peft_alone(pretrained, tmp_path):
    """Headstart's bottleneck adapters need one import of Headstart, so they come last."""
    folders, outputs = {}, {}
    # Not `prompt`: in peft its classifier would read a virtual token (test_virtual_tokens.py).
    for name in ("lora", "ia3", "prefix", "adapters"):
        given = pretrained("bert")
        method = registry.build("adaptations", registry.resolve("adaptations", name).Config())
        model = method.adapt(given.source)
        given.train(model)
        outputs[name] = given.outputs(model)
        method.finish(model).save_pretrained(str(tmp_path / name))
        folders[name] = (str(given.folder), str(tmp_path / name))
    batch, results = tmp_path / "batch.safetensors", tmp_path / "outputs.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in given.batch.items()}, batch)
    arguments = [sys.executable, "-c", SCRIPT, json.dumps(folders), str(batch), str(results)]
    process = subprocess.run(arguments, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert process.returncode == 0, process.stderr
    for name, logits in load_file(results).items():
        assert (logits - outputs[name]).abs().max() < 1e-5, name


def test_headstart_loads_its_own_adapters_in_a_new_process(pretrained, tmp_path):
    given = pretrained("bert")
    method = registry.build("adaptations", registry.resolve("adaptations", "adapters").Config())
    method.finish(method.adapt(given.source)).save_pretrained(str(tmp_path / "adapter"))
    script = (
        "import sys\n"
        "from headstart.checkpoint.load import load_adapter, load_model\n"
        "model = load_model('AutoModelForSequenceClassification', sys.argv[1], num_labels=3)\n"
        "print(type(load_adapter(model, sys.argv[2]).base_model).__name__)\n"
    )
    arguments = [sys.executable, "-c", script, str(given.folder), str(tmp_path / "adapter")]
    process = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert process.stdout.strip() == "BottleneckModel", process.stderr
