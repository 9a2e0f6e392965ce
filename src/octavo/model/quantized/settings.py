"""From a checkpoint's configuration to its scheme: which methods and settings are supported.

Owns: the keys of `quantization_config` (or of `quantize_config.json`, `quant_config.json`), and the
refusals, which name what was found and the nearest that is supported.
Does not know: tensors, layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.model.errors import ModelError
from octavo.model.families.fields import Fields
from octavo.model.quantized.awq import Awq
from octavo.model.quantized.compressed import read_compressed
from octavo.model.quantized.fp8 import Fp8, fp8_block
from octavo.model.quantized.gptq import Gptq
from octavo.model.quantized.refusals import SUPPORTED, refused
from octavo.model.quantized.scheme import Scheme
from octavo.model.safetensors import load_json

_FILES = ("quantize_config.json", "quant_config.json")
"""Where older GPTQ and AWQ checkpoints say how they are quantised."""

_NEAREST = {
    "bitsandbytes": "the gptq or awq version of the model, or the unquantised one with --quantize",
    "fbgemm_fp8": "the model's fp8 version (quant_method fp8 or compressed-tensors)",
    "modelopt": "the model's compressed-tensors version",
    "mxfp4": "a GGUF file of the model",
    "auto-round": "its export in the auto_gptq or auto_awq format",
    "intel/auto-round": "its export in the auto_gptq or auto_awq format",
    "torchao": "the model's compressed-tensors version",
}


def read_scheme(directory: Path, config: Mapping[str, Any]) -> Scheme | None:
    """The scheme of the checkpoint in `directory`, whose config.json is `config`; None for plain
    floats. Raises ModelError (codes "unsupported_quantization", "bad_config")."""
    origin, found = _find(directory, config)
    if not found:
        return None
    if not isinstance(found, dict):
        raise ModelError(
            f"{origin}: quantization_config is {found!r:.60}, not an object", "bad_config"
        )
    method = _method(found)
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        bits = found.get("bits", found.get("w_bit"))
        told = f" ({bits} bits)" if bits is not None else ""
        nearest = _NEAREST.get(str(method), SUPPORTED)
        raise refused(origin, f"has quant_method {method!r}{told}", nearest)
    return reader(Fields(found, f"{origin}: quantization_config"), origin)


def _find(directory: Path, config: Mapping[str, Any]) -> tuple[str, Any]:
    for key in ("quantization_config", "compression_config"):
        if config.get(key):
            return str(directory / "config.json"), config[key]
    for name in _FILES:
        if (directory / name).is_file():
            return str(directory / name), load_json(directory / name)
    return "", None


def _method(found: Mapping[str, Any]) -> Any:
    """`quant_method`, or what files from before that key was known must be."""
    method = found.get("quant_method")
    if isinstance(method, str):
        return method.lower()
    if method is None and "w_bit" in found:
        return "awq"
    if method is None and "bits" in found and ("desc_act" in found or "sym" in found):
        return "gptq"
    return method


def _group(fields: Fields, *keys: str) -> int:
    """Inputs of a group; 0: all (-1 in the file)."""
    key = next((key for key in keys if fields.values.get(key) is not None), keys[0])
    return 0 if fields.values.get(key) == -1 else fields.size(key)


def _gptq(fields: Fields, origin: str) -> Scheme:
    bits = fields.size("bits")
    if bits not in (4, 8):
        raise refused(origin, f"has gptq with bits {bits}", "gptq with 4 or 8 bits")
    kind = fields.text("checkpoint_format", fields.text("format", "gptq")).lower()
    if kind not in ("gptq", "gptq_v2"):
        raise refused(origin, f"has gptq with checkpoint_format {kind!r}", "gptq and gptq_v2")
    dynamic = fields.values.get("dynamic")
    if isinstance(dynamic, dict) and any(not str(name).startswith("-:") for name in dynamic):
        raise refused(
            origin, "has gptq with settings by module (dynamic)", "gptq with the same for all"
        )
    fields.flag("desc_act")
    return Gptq(
        bits, _group(fields, "group_size"), fields.flag("sym", True), 1 + (kind == "gptq_v2")
    )


def _awq(fields: Fields, origin: str) -> Scheme:
    key = "bits" if fields.values.get("bits") is not None else "w_bit"
    bits = fields.size(key)
    if bits != 4:
        raise refused(origin, f"has awq with {key} {bits}", "awq with 4 bits, gptq with 4 or 8")
    version = fields.text("version", "gemm").lower()
    if version not in ("gemm", "exllama", "ipex"):
        raise refused(origin, f"has awq with version {version!r}", "awq with version gemm")
    if not fields.flag("zero_point", True):
        raise refused(origin, "has awq with zero_point false", "awq with zero_point true")
    return Awq(_group(fields, "group_size", "q_group_size"))


def _fp8(fields: Fields, origin: str) -> Scheme:
    kind = fields.text("fmt", "e4m3").lower()
    if kind != "e4m3":
        raise refused(origin, f"has fp8 with fmt {kind!r}", "fp8 with e4m3")
    if fields.values.get("weight_block_size") is None:
        return Fp8("fp8", None)
    return Fp8("fp8", fp8_block(fields, "weight_block_size"))


_READERS: dict[str, Callable[[Fields, str], Scheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": read_compressed,
    "fp8": _fp8,
}
