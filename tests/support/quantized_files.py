"""Quantised checkpoints written by the published layouts, each with its twin of plain floats.

Owns: rounding matrices to codes, and one packer for each layout, straight from its description.
Does not know: octavo's reading of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Tensors = dict[str, np.ndarray]
MODULES = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
)  # fmt: skip
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass
class Rounded:
    """A matrix as codes: (outputs, inputs), scales and zeros (outputs, groups), and the group of
    each input. `weights` are what they stand for, in float32."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    index: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        exact = self.codes.astype(np.float32) - self.zeros[:, self.index].astype(np.float32)
        return exact * self.scales.astype(np.float32)[:, self.index]


def rounded(
    matrix: np.ndarray,
    bits: int,
    group: int,
    symmetric: bool,
    *,
    shuffle: int | None = None,
    scales: Any = np.float16,
) -> Rounded:
    """`group` -1: all inputs. `shuffle`: a seed by which inputs are dealt to groups (act-order)."""
    outputs, inputs = matrix.shape
    size = inputs if group == -1 else group
    groups = -(-inputs // size)
    index = np.arange(inputs) // size
    if shuffle is not None:
        index = index[np.random.default_rng(shuffle).permutation(inputs)]
    top = (1 << bits) - 1
    low, high = np.zeros((outputs, groups)), np.zeros((outputs, groups))
    for g in range(groups):
        low[:, g] = np.minimum(matrix[:, index == g].min(axis=1), -1e-4)
        high[:, g] = np.maximum(matrix[:, index == g].max(axis=1), 1e-4)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    steps = ((high - low) / top).astype(scales)
    if symmetric:
        zeros = np.full((outputs, groups), (top + 1) // 2)
    else:
        zeros = np.clip(np.rint(-low / steps.astype(np.float64)), 0, top)
        zeros[:2] = [[0], [top]]  # as groups of one sign have them
    codes = np.rint(matrix / steps.astype(np.float64)[:, index]) + zeros[:, index]
    return Rounded(np.clip(codes, 0, top).astype(np.int64), steps, zeros.astype(np.int64), index)


def words(
    codes: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None
) -> np.ndarray:
    """Codes packed into int32 along `axis`; word by word the n-th lowest place has `order[n]`."""
    count = 32 // bits
    order = order or tuple(range(count))
    moved = np.moveaxis(codes, axis, -1)
    padded = np.pad(moved, ((0, 0), (0, -moved.shape[1] % count)))
    packed = np.zeros((padded.shape[0], padded.shape[1] // count), np.uint64)
    for place, member in enumerate(order):
        packed |= padded[:, member::count].astype(np.uint64) << np.uint64(bits * place)
    return np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis))


def gptq(bits: int, version: int = 1, with_index: bool = True) -> Callable[[Rounded], Tensors]:
    def pack(m: Rounded) -> Tensors:
        stored = (m.zeros - (version == 1)) % (1 << bits)
        tensors = {
            "qweight": words(m.codes.T, bits, 0),
            "qzeros": words(stored.T, bits, 1),
            "scales": m.scales.T,
        }
        if with_index:
            tensors["g_idx"] = m.index.astype(np.int32)
        return tensors

    return pack


def awq(order: tuple[int, ...] = AWQ_ORDER) -> Callable[[Rounded], Tensors]:
    def pack(m: Rounded) -> Tensors:
        return {
            "qweight": words(m.codes.T, 4, 1, order),
            "qzeros": words(m.zeros.T, 4, 1, order),
            "scales": m.scales.T,
        }

    return pack


def pack_quantized(
    bits: int, symmetric: bool, with_index: bool = False, brain: bool = False
) -> Callable[[Rounded], Tensors]:
    """`brain`: scales are stored as bfloat16. Signed integers with half the range added
    come to the codes themselves."""

    def pack(m: Rounded) -> Tensors:
        tensors = {
            "weight_packed": words(m.codes, bits, 1),
            "weight_scale": bf16(m.scales) if brain else m.scales,
            "weight_shape": np.array(m.codes.shape, np.int64),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(m.zeros, bits, 0)
        if with_index:
            tensors["weight_g_idx"] = m.index.astype(np.int32)
        return tensors

    return pack


def int_quantized(symmetric: bool) -> Callable[[Rounded], Tensors]:
    def pack(m: Rounded) -> Tensors:
        tensors = {"weight": (m.codes - 128).astype(np.int8), "weight_scale": m.scales}
        if not symmetric:
            tensors["weight_zero_point"] = (m.zeros - 128).astype(np.int8)
        return tensors

    return pack


def write_pair(
    directory: Path,
    source: Path,
    make: Callable[[str, np.ndarray], tuple[Tensors, np.ndarray]],
    settings: dict[str, Any],
    *,
    modules: tuple[str, ...] = MODULES,
    keep: tuple[str, ...] = (),
    settings_file: str = "",
    extra: Callable[[str], Tensors] | None = None,
) -> tuple[Path, Path]:
    """The checkpoint at `source` with its matrices of `modules` (last parts of names) made by
    `make(module, matrix)` into tensors by suffix and floats: once quantised, once with those
    floats. What is in `keep` stays floats in both."""
    coded = Path(shutil.copytree(source, directory / "coded"))
    plain = Path(shutil.copytree(source, directory / "plain"))
    tensors, twin = load_file(source / "model.safetensors"), {}
    for name in list(tensors):
        module, _, suffix = name.rpartition(".")
        last = module.rpartition(".")[2]
        if suffix == "weight" and last in modules and last not in keep:
            parts, twin[name] = make(module, tensors.pop(name))
            parts |= {} if extra is None else extra(module)
            tensors |= {f"{module}.{part}": value for part, value in parts.items()}
    save(coded / "model.safetensors", tensors)
    save(plain / "model.safetensors", load_file(source / "model.safetensors") | twin)
    if settings_file:
        (coded / settings_file).write_text(json.dumps(settings))
    else:
        config = json.loads((source / "config.json").read_text())
        config["quantization_config"] = settings
        (coded / "config.json").write_text(json.dumps(config))
    return coded, plain


KINDS = {
    "float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "F8_E4M3",
    "int8": "I8", "int32": "I32", "int64": "I64",
}  # fmt: skip
"""What arrays are stored as: numpy has neither bfloat16 nor float8, whose bits come unsigned."""


def bf16(values: np.ndarray) -> np.ndarray:
    """The bits of floats that are bfloat16 values."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def save(path: Path, tensors: Tensors) -> None:
    """As safetensors."""
    header, data, at = {}, [], 0
    for name, value in tensors.items():
        raw = np.ascontiguousarray(value).tobytes()
        kind = KINDS[value.dtype.name]
        header[name] = {"dtype": kind, "shape": value.shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
