"""The peak speed of devices by their data sheets, for the utilization of a run (MFU, Chowdhery et al. 2022).

Dense matrix products, without sparsity, as the vendors' data sheets state them: NVIDIA B200 (DGX B200), H200, H100,
A100, L40S, L4, A10, T4 and V100, the white papers of Ada and Ampere GA102 (GeForce, with fp32 accumulation), and AMD
Instinct MI300X. Check a value against the sheet of your device before you publish an MFU.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Peak FLOP/s by number format; None if the device has no units for it."""

    bf16: float | None
    fp16: float | None
    tf32: float | None
    fp32: float


T = 1e12
_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"\bB200\b", Peak(2250 * T, 2250 * T, 1125 * T, 75 * T)),
    (r"\bH200\b", Peak(989 * T, 989 * T, 494 * T, 67 * T)),
    (r"\bH100 PCIe\b", Peak(756 * T, 756 * T, 378 * T, 51 * T)),
    (r"\bH100 NVL\b", Peak(835 * T, 835 * T, 417 * T, 60 * T)),
    (r"\bH100\b", Peak(989 * T, 989 * T, 494 * T, 67 * T)),
    (r"\bA100\b", Peak(312 * T, 312 * T, 156 * T, 19.5 * T)),
    (r"\bL40S\b", Peak(362 * T, 362 * T, 183 * T, 91.6 * T)),
    (r"\bL4\b", Peak(121 * T, 121 * T, 60 * T, 30.3 * T)),
    (r"\bA10\b", Peak(125 * T, 125 * T, 62.5 * T, 31.2 * T)),
    (r"\bRTX 4090\b", Peak(165 * T, 165 * T, 82.6 * T, 82.6 * T)),
    (r"\bRTX 3090\b", Peak(71 * T, 71 * T, 35.6 * T, 35.6 * T)),
    (r"\bT4\b", Peak(None, 65 * T, None, 8.1 * T)),
    (r"\bV100\b", Peak(None, 125 * T, None, 15.7 * T)),
    (r"\bMI300X\b", Peak(1307 * T, 1307 * T, 654 * T, 163 * T)),
)
"""Patterns of the names that drivers report, the specific ones first."""


def peak_flops(device: str, precision: str, tf32: bool = False) -> float | None:
    """Return the peak FLOP/s of a device by its name and number format; None for processors and unknown devices."""
    for pattern, peak in _PEAKS:
        if re.search(pattern, device, re.IGNORECASE):
            column = "tf32" if precision == "fp32" and tf32 and peak.tf32 else precision
            value: float | None = getattr(peak, column, None)
            return value
    return None
