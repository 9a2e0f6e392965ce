"""The numerics fingerprint: within one of these, the same request gives the same tokens.

Owns: what goes into it.
Does not know: how the parts are computed.
"""

from __future__ import annotations

import hashlib

from octavo.model.spec import DecoderSpec, WeightSource
from octavo.model.weights import expected_shapes
from octavo.ops import Runs

SAMPLES = 64
SAMPLE_BYTES = 64


def fingerprint(
    spec: DecoderSpec, source: WeightSource, *, backend: str, dtype: str, kv_dtype: str
) -> str:
    """32 hex digits over the spec, the weights, the backend's identity and the data types.

    Of each weight the name, format, shape and bytes taken evenly over it go in, not all bytes:
    other models differ in nearly every tensor, and start-up need not read the file twice.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((spec, backend, dtype, kv_dtype)).encode())
    for name in expected_shapes(spec):
        raw = source.get(name)
        digest.update(repr((name, raw.format, raw.shape)).encode())
        for run in raw.data if isinstance(raw.data, Runs) else (raw.data,):
            data = memoryview(run).cast("B")
            step = max(SAMPLE_BYTES, len(data) // SAMPLES)
            for at in range(0, len(data), step):
                digest.update(data[at : at + SAMPLE_BYTES])
            digest.update(data[-SAMPLE_BYTES:])
    return digest.hexdigest()
