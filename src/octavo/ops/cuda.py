"""The torch backend: every op on tensors of one device, a CUDA GPU where there is one.

Owns: weights as tensors, the plain ops, the choice between a Triton kernel and its torch twin, and
the way back from the device to the host (logits, for sampling).
Does not know: models, requests. Attention and cache are in files of their own.

Importing this needs torch, an extra (`octavo[gpu]`); `ops.select` imports it when it is chosen.
Without a GPU it computes on the CPU, which is for tests: the C++ kernels are many times faster.

Products are the vendor's, whose order of summation may change with the shape of the batch: bits
are not independent of the neighbours on this backend, and its identity says so. Sampling and
scoring run in numpy on a copy of the logits, by the same code as the reference, so that equal
logits give equal tokens on every backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from octavo.ops import (
    AttentionSpec,
    CacheLayout,
    HostBatch,
    NormSpec,
    RawWeight,
    RopeSpec,
    RoutingSpec,
    SampledRow,
    SampleRow,
)
from octavo.ops.cuda_attention import attend, rope_rows, rotate
from octavo.ops.cuda_cache import CudaBatch, CudaCache, upload
from octavo.ops.cuda_experts import mix
from octavo.ops.packing import DTYPES, loss, packed_format
from octavo.ops.reference_experts import ExpertSet, check_experts
from octavo.ops.reference_sampling import sample_rows, score_rows

Args = ParamSpec("Args")
Result = TypeVar("Result")

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}

_HOST_ALLOCATOR = "DefaultCPUAllocator"


def _tells_of_memory(op: Callable[Args, Result]) -> Callable[Args, Result]:
    """What torch raises for want of memory becomes the MemoryError that executors know."""

    @wraps(op)
    def told(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        try:
            return op(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or _HOST_ALLOCATOR in str(error):
                raise MemoryError(str(error)) from error
            raise

    return told


@dataclass(slots=True)
class CudaWeight:
    """`matrix`: (outputs, inputs), float32 or bfloat16; `bias`: (outputs,) float32 or None."""

    matrix: torch.Tensor
    bias: torch.Tensor | None


class CudaOps:
    """Implements `octavo.ops.Ops`.

    `device`: "cuda", "cuda:1", "cpu"; by default the GPU where there is one. `dtype` says what
    weights are held in (`packing.packed_format`): float32, or bfloat16, to which a product's inputs
    are rounded then too (its sums are float32). `threads` bounds torch's own threads, which are the
    process's. `triton`: whether norms run as a Triton kernel; by default where that works, which
    without a GPU is under TRITON_INTERPRET=1.
    """

    name = "cuda"

    def __init__(
        self,
        *,
        threads: int = 1,
        dtype: str = "auto",
        device: str | None = None,
        triton: bool | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype
        self.notes: list[str] = []
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        self._rms_norm = _load_rms_norm() if _use_triton(self.device, triton) else None

    @property
    def identity(self) -> str:
        chip = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        norm = f"triton-{version('triton')}" if self._rms_norm else "torch"
        where = f"torch:{torch.__version__} on:{chip}"
        return f"cuda:1 {where} dtype:{self.dtype} norm:{norm} mode:batch"

    def recorded(self, forward: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return partial(forward, self)

    # Weights and products

    @_tells_of_memory
    def pack(
        self, weights: Sequence[RawWeight], bias: Sequence[RawWeight] = (), exact: bool = False
    ) -> CudaWeight:
        inputs = {w.shape[1] for w in weights}
        if len(inputs) != 1:
            shapes = ", ".join(f"{w.name} {w.shape}" for w in weights)
            raise ValueError(f"weights to be fused differ in their inputs: {shapes}")
        exact = exact or packed_format([w.format for w in weights], self.dtype) == "f32"
        dtype = torch.float32 if exact else torch.bfloat16
        outputs = sum(w.shape[0] for w in weights)
        matrix = torch.empty((outputs, inputs.pop()), dtype=dtype, device=self.device)
        row = 0
        for weight in weights:
            note = loss(weight.format, "f32" if exact else "bf16")
            if note is not None and note not in self.notes:
                self.notes.append(note)
            matrix[row : row + weight.shape[0]] = _tensor(weight)
            row += weight.shape[0]
        if not bias:
            return CudaWeight(matrix, None)
        joined = torch.cat([self.vector(b) for b in bias])
        if joined.shape[0] != outputs:
            raise ValueError(f"{bias[0].name}: {joined.shape[0]} values for {outputs} outputs")
        return CudaWeight(matrix, joined)

    @_tells_of_memory
    def vector(self, weight: RawWeight) -> torch.Tensor:
        return torch.empty(weight.shape, device=self.device).copy_(_tensor(weight))

    @_tells_of_memory
    def linear(self, x: torch.Tensor, weight: CudaWeight) -> torch.Tensor:
        if weight.matrix.dtype == torch.float32:
            return F.linear(x, weight.matrix, weight.bias)
        out = F.linear(x.to(torch.bfloat16), weight.matrix).float()
        return out if weight.bias is None else out + weight.bias

    @_tells_of_memory
    def embed(self, ids: CudaBatch, table: CudaWeight) -> torch.Tensor:
        return table.matrix.index_select(0, ids.ids).float()

    @_tells_of_memory
    def embed_positions(self, batch: CudaBatch, table: CudaWeight, offset: int = 0) -> torch.Tensor:
        return table.matrix.index_select(0, batch.positions + offset).float()

    def bundle(
        self, experts: Sequence[tuple[CudaWeight, CudaWeight]], kind: str, spec: RoutingSpec
    ) -> ExpertSet:
        shapes = [(tuple(up.matrix.shape), tuple(down.matrix.shape)) for up, down in experts]
        check_experts(shapes, kind, spec)
        return ExpertSet(tuple(experts), kind, spec)

    @_tells_of_memory
    def experts(self, x: torch.Tensor, scores: torch.Tensor, experts: ExpertSet) -> torch.Tensor:
        def mlp(rows: torch.Tensor, expert: tuple[CudaWeight, CudaWeight]) -> torch.Tensor:
            return self.linear(self.act(self.linear(rows, expert[0]), experts.kind), expert[1])

        return mix(x, scores, experts, mlp)

    # Rows by themselves

    @_tells_of_memory
    def norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        spec: NormSpec,
        residual: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x.shape[-1] == weight.shape[0]
        if self._rms_norm and spec.kind == "rms" and bias is None and whole:
            return self._rms_norm(x, weight, spec.eps, spec.weight_offset, residual)
        total = x if residual is None else x + residual
        part = total.reshape(-1, weight.shape[0])
        if spec.kind == "layer":
            part = part - part.mean(dim=-1, keepdim=True)
        square = part.square().mean(dim=-1, keepdim=True)
        normed = part / torch.sqrt(square + spec.eps) * (weight + spec.weight_offset)
        return (normed if bias is None else normed + bias).reshape(total.shape), total

    @_tells_of_memory
    def act(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        plain = kind.removesuffix("_gated")
        if plain not in ACTIVATIONS:
            raise ValueError(f"unknown activation {kind!r}; known are {', '.join(ACTIVATIONS)}")
        if plain == kind:
            return ACTIVATIONS[plain](x)
        gate, up = x.chunk(2, dim=-1)
        return ACTIVATIONS[plain](gate) * up

    @_tells_of_memory
    def add(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.add(x, y, alpha=scale)

    @_tells_of_memory
    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    @_tells_of_memory
    def bound(self, x: torch.Tensor, limit: float, smooth: bool = False) -> torch.Tensor:
        return limit * torch.tanh(x / limit) if smooth else torch.clamp(x, -limit, limit)

    # The batch, the cache, attention

    @_tells_of_memory
    def upload(self, batch: HostBatch) -> CudaBatch:
        return upload(batch, self.device)

    @_tells_of_memory
    def logit_rows(self, x: torch.Tensor, batch: CudaBatch) -> torch.Tensor:
        return x.index_select(0, batch.logit_tokens)

    @_tells_of_memory
    def rope_and_store(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: CudaCache,
        batch: CudaBatch,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> torch.Tensor:
        tokens = q.shape[0]
        keys = k.reshape(tokens, spec.kv_heads, spec.head_dim)
        values = v.reshape(tokens, spec.kv_heads, spec.head_dim)
        if rope is not None:
            cos, sin = rope_rows(rope, batch)
            keys = rotate(keys, cos, sin, rope.interleaved)
            queries = q.reshape(tokens, spec.heads, spec.head_dim)
            q = rotate(queries, cos, sin, rope.interleaved).flatten(1)
        written = batch.written
        cache.store(
            spec.group,
            spec.layer,
            batch.slots[spec.group],
            keys.index_select(0, written),
            values.index_select(0, written),
        )
        return q

    @_tells_of_memory
    def attention(
        self, q: torch.Tensor, cache: CudaCache, batch: CudaBatch, spec: AttentionSpec
    ) -> torch.Tensor:
        return attend(q, cache, batch, spec)

    @_tells_of_memory
    def allocate_cache(self, layout: CacheLayout, blocks: Sequence[int]) -> CudaCache:
        return CudaCache(layout, blocks, self.device)

    @_tells_of_memory
    def copy_blocks(self, cache: CudaCache, pairs: Sequence[tuple[int, int, int]]) -> None:
        cache.copy(pairs)

    def read_block(self, cache: CudaCache, group: int, block: int) -> bytes:
        return cache.read(group, block)

    def write_block(self, cache: CudaCache, group: int, block: int, data: bytes) -> None:
        cache.write(group, block, data)

    # From logits to tokens

    @_tells_of_memory
    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledRow]:
        return sample_rows(logits.cpu().numpy(), rows)

    @_tells_of_memory
    def score(self, logits: torch.Tensor, targets: Sequence[int], top: int) -> list[SampledRow]:
        return score_rows(logits.cpu().numpy(), targets, top)


def _tensor(weight: RawWeight) -> torch.Tensor:
    """On the host, float32. A mapped array is copied: torch takes no read-only memory."""
    return torch.from_numpy(np.require(weight.dequantize(), np.float32, ["C", "W"]))


def _use_triton(device: torch.device, wanted: bool | None) -> bool:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    possible = find_spec("triton") is not None and (device.type == "cuda" or interpreted)
    if wanted and not possible:
        raise ValueError(
            "Triton kernels need the triton package and a GPU (or TRITON_INTERPRET=1); "
            f"the device is {device}"
        )
    return possible if wanted is None else wanted


def _load_rms_norm() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    from octavo.ops.triton.rms_norm import rms_norm

    return rms_norm
