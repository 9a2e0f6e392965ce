"""The words with which a quantisation is refused.

Owns: what is supported, in one line.
Does not know: configurations.
"""

from __future__ import annotations

from octavo.model.errors import ModelError

SUPPORTED = "gptq (4 and 8 bits), awq (4 bits), compressed-tensors, fp8"


def refused(origin: str, found: str, nearest: str) -> ModelError:
    """`found` continues "quantization_config ..."; `nearest` is what is supported instead."""
    return ModelError(
        f"{origin}: quantization_config {found}, which is not supported; supported: {nearest}",
        "unsupported_quantization",
        "Use a checkpoint of that kind, the unquantised model, or a quantised GGUF file of it.",
    )
