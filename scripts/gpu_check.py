"""Runs the tests of the torch backend and the Triton kernels on this machine's GPU.

    python scripts/gpu_check.py [arguments of pytest]

Run by `make gpu-check`, or by any Python that has torch, triton, pytest, numpy and msgspec: nothing
need be installed of Octavo itself. Prints the versions first. Without CUDA it says so and exits
with 0; with CUDA, with the status of the tests. Standard library only.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("torch", "triton", "numpy", "msgspec", "pytest")


def versions() -> dict[str, str]:
    """Of what is needed and there."""
    return {name: metadata.version(name) for name in NEEDED if find_spec(name) is not None}


def gpu() -> str | None:
    """The first GPU in words; None where torch is missing or finds none."""
    if find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return (
        f"{torch.cuda.get_device_name()} (compute capability {major}.{minor}, {memory:.0f} GiB, "
        f"CUDA {torch.version.cuda})"
    )


def main() -> int:
    found = versions()
    print(f"python {platform.python_version()}", *(f"{n} {v}" for n, v in found.items()), sep=", ")
    chip = gpu()
    if chip is None:
        reason = "torch finds no CUDA GPU" if "torch" in found else "torch is not installed"
        print(f"{reason}: nothing to check (`make oracle` runs these tests on the CPU)")
        return 0
    print(chip, flush=True)
    missing = [name for name in NEEDED if name not in found]
    if missing:
        print(f"not installed: pip install {' '.join(missing)}", file=sys.stderr)
        return 1
    # The interpreter would hide what the compiler makes of a kernel.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "pytest", "tests/gpu", "-p", "no:cacheprovider", "-rs"]
    return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
