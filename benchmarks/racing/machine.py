"""Which machine a run was on."""

import platform
from pathlib import Path

SHOWN_FLAGS = ("avx512f", "avx512_bf16", "amx_bf16")


def processor() -> str:
    """Name and kind of the processor, where the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    cores = sum(line.startswith("processor") for line in lines)
    # The name alone does not tell generations apart, which differ by a factor of two.
    words = [f"{cores} × {fields.get('model name', platform.processor())}"]
    words += [f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields]
    flags = fields.get("flags", "").split()
    return " ".join([*words, *(flag for flag in SHOWN_FLAGS if flag in flags)])
