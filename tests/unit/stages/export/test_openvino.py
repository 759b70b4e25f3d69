"""Export to OpenVINO."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("openvino", reason="the extra `export` is missing; `pip install 'headstart[export]'` brings it")

CODE = """
from headstart.stages.export.formats.openvino import disable_telemetry
disable_telemetry()
from openvino.tools.ovc import telemetry_utils
print(telemetry_utils.tm.__name__)
"""


def test_the_converter_reports_nothing():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "openvino.tools.ovc.telemetry_stub"
