"""GPTQ and AWQ as checkpoints of them come: how a matrix is made, and what the configuration says.

Owns: the settings that go with `quantized_files`' packers.
Does not know: octavo.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from support import quantized_files as files


def gptq(bits: int, group: int, symmetric: bool, act: bool = False, version: int = 1) -> Any:
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": symmetric,
        "desc_act": act,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }

    def make(name: str, matrix: np.ndarray) -> Any:
        # Inputs that are multiplied as one are in one order; that of the others is their own.
        seed = {"o_proj": 2, "down_proj": 3}.get(name.rpartition(".")[2], 1)
        m = files.rounded(matrix, bits, group, symmetric, shuffle=seed if act else None)
        return files.gptq(bits, version)(m), m.weights

    return make, settings


def awq(group: int, order: tuple[int, ...] = files.AWQ_ORDER) -> Any:
    settings = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": None,
    }

    def make(name: str, matrix: np.ndarray) -> Any:
        m = files.rounded(matrix, 4, group, False)
        return files.awq(order)(m), m.weights

    return make, settings
