"""A step that does not fit into memory names the micro-batch that fits; a limit of the process makes it so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headstart.training.devices import peak_flops
from headstart.training.memory import StepMemory, advice

_CODE = """
import json, re, resource, sys, tempfile
from pathlib import Path
import psutil, torch
from headstart.core.data import ParameterGroup
from headstart.core.errors import ResourceError
from headstart.training.loop import Loop, RunInfo
from headstart.training.phases import Phase
from headstart.training.settings import TrainingSettings
torch.set_num_threads(1)
WIDTH, LAYERS, BATCH = 1 << 17, 8, 512     # 512 kB per sample and layer

class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, batch):
        x = batch["x"].expand(-1, WIDTH)
        for _ in range(LAYERS):
            x = torch.tanh(x * self.weight)
        return x.sum()

class Learner:
    lengths, parts, module = None, (), Deep()
    def __len__(self): return 10_000
    def batch(self, samples): return {"x": torch.ones(len(samples), 1)}
    def weight(self, batch): return float(len(batch["x"]))
    def tokens(self, batch): return len(batch["x"])
    def parameter_groups(self): return [ParameterGroup(("weight",))]
    def validate(self): return {}

def attempt(micro):
    settings = TrainingSettings(budget="1 steps", precision="fp32", micro_batch_size=micro, report_to="none")
    loop = Loop(Learner(), settings, RunInfo(Path(tempfile.mkdtemp()), "x"), [Phase(0.0, Learner(), micro or BATCH)],
                callbacks=[])
    try:
        loop.run()
    except ResourceError as error:
        return str(error)

attempt(2)
limit = psutil.Process().memory_info().vms + (1 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
said = attempt(None)
fits = int(re.search(r"micro_batch_size` to (\\d+)", said)[1])
print(json.dumps({"said": said, "fits": fits, "then": attempt(fits), "twice": attempt(2 * fits)}))
"""


def test_the_micro_batch_that_is_named_fits_and_twice_as_much_does_not():
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert "does not fit into the memory of cpu" in found["said"] and "MB per sample" in found["said"]
    assert "activation_checkpointing: full" in found["said"]
    assert found["then"] is None, "what was named does not fit either"
    assert "does not fit" in found["twice"], "far more would have fitted"


def test_advice_without_a_measurement_and_for_a_network_that_is_too_large():
    assert "Lower `training.micro_batch_size`" in str(advice(None, 8, None, "cuda"))
    huge = StepMemory(state=8 << 30, unallocated=6 << 30, fixed=0, per_sample=1 << 20)
    assert "Not even one sample fits" in str(advice(huge, 8, 4 << 30, "cuda"))
    assert "`training.micro_batch_size` to 7" in str(advice(huge, 8, 64 << 30, "cuda"))


@pytest.mark.parametrize(
    ("device", "precision", "tf32", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", False, 312), ("NVIDIA H100 PCIe", "bf16", False, 756),
        ("NVIDIA H100 80GB HBM3", "bf16", False, 989), ("Tesla T4", "fp16", False, 65),
        ("Tesla T4", "bf16", False, None),
        ("NVIDIA A100-PCIE-40GB", "fp32", True, 156), ("NVIDIA A100-PCIE-40GB", "fp32", False, 19.5),
        ("cpu", "bf16", False, None), ("NVIDIA L40S", "bf16", False, 362), ("NVIDIA L4", "bf16", False, 121),
    ],
)  # fmt: skip
def test_peaks_by_the_names_of_drivers(device, precision, tf32, tera):
    found = peak_flops(device, precision, tf32)
    assert found == (None if tera is None else pytest.approx(tera * 1e12))
