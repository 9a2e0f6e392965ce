"""What a backend provides: the `Ops` protocol and the plain data that model code hands to it.

Owns: the protocol, `RawWeight`, the specs of single ops, the layout of a step's batch.
Does not know: models, files, requests. Arrays are the backend's own kind; model code only passes
and slices them. Nothing here imports anything of ours.

Row independence: every op computes row i from row i's inputs alone, in an order of floating-point
operations fixed by shapes and the token's absolute position. Attention reads keys and values only
from the cache, after rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

NONFINITE_LOGITS = "the logits are not finite"
"""`SampledRow.error` of a row with a NaN or +inf, or with nothing above -inf."""

NOTHING_ALLOWED = "no token may be sampled: bans and mask exclude them all"
"""`SampledRow.error` of a row whose bans and mask leave no token."""

Array = Any
Weight = Any
Experts = Any
Batch = Any
Cache = Any


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """A matrix of codes of 4 or 8 bits with a scale and a zero for each group of inputs.

    `rows(begin, end)` reads some outputs: codes uint8 (rows, inputs), scales float32 (rows,
    groups), and zeros uint8 shaped as scales, or None where all are `zero`. A weight is
    (code - zero) * scale in float32. Groups are `group` inputs that follow one another in `order()`
    (inputs,), or by themselves where that is None; the last may be short.
    """

    bits: int
    inputs: int
    group: int
    zero: int | None
    rows: Callable[[int, int], tuple[Any, Any, Any]]
    order: Callable[[], Any]


class Runs(tuple[Any, ...]):
    """Bytes in several runs, each with a buffer."""

    @property
    def nbytes(self) -> int:
        return sum(memoryview(run).nbytes for run in self)


@dataclass(slots=True)
class RawWeight:
    """A tensor as its file holds it, not read yet.

    `shape` is (outputs, inputs) for a matrix, (size,) for a vector. `format` is "f32", "f16",
    "bf16", "fp8", "gguf:<TYPE>" (e.g. "gguf:Q4_K") or "codes:<name>" (`packing.codes_format`);
    `data` the memory-mapped rows in that format; for fp8 and codes `Runs` of all that they are
    made of, which only tell one weight from another;
    `dequantize()` gives float32 of `shape` (a fresh or mapped array), `dequantize_rows(begin, end)`
    that of some rows of a matrix, where they can be had alone; `take_rows(index)` the weight of
    some rows only, by a slice or an array of row numbers.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: Any
    dequantize: Callable[[], Any]
    dequantize_rows: Callable[[int, int], Any] | None = None
    take_rows: Callable[[Any], RawWeight] | None = None
    codes: GroupedCodes | None = None


@dataclass(frozen=True, slots=True)
class NormSpec:
    """`kind` "rms" or "layer"; `weight_offset` is added to the weight (Gemma: 1.0). `bias`: whether
    the model has one; the op itself goes by its argument."""

    kind: str
    eps: float
    weight_offset: float = 0.0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding with its frequencies worked out beforehand.

    `inverse_frequencies` has `rotary_dim // 2` entries (rotary_dim <= head_dim: the rest of a head
    is passed through); `scale` multiplies cos and sin (YaRN, longrope). `interleaved` pairs
    dimensions (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
    """

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One layer's attention. `layer` and `group` say where its keys and values lie in the cache.

    `window` counts the token itself (0: unlimited). `alibi_slopes` has one entry a query head.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    group: int = 0
    window: int = 0
    softcap: float = 0.0
    alibi_slopes: tuple[float, ...] = ()
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """How a router's scores for `count` experts become the experts that a token takes.

    It takes the `top_k` with the largest scores, of equal ones the lower numbers. They weigh their
    part of the softmax over all, divided by the sum of the taken if `normalize` (which is the
    softmax over the taken alone), times `scale`. `shared`: every token takes one more expert, which
    weighs the sigmoid of the score after those of the others.
    """

    count: int
    top_k: int
    normalize: bool = True
    scale: float = 1.0
    shared: bool = False

    @property
    def scores(self) -> int:
        """Scores for each token, and experts in all."""
        return self.count + self.shared


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """What `allocate_cache` needs: per KV group the number of layers and the shape of a key."""

    block_size: int
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    dtype: str = "float32"


@dataclass(slots=True)
class HostBatch:
    """A step as flat lists. Token t of the batch belongs to row `row_of[t]`.

    `ids` and `positions` have one entry a token; `row_starts` (rows + 1) delimits each row's
    tokens; `tables[group][row]` are block ids covering positions 0 up to the row's last;
    `write_from[row]`: positions below it are in the cache already and must not be written.
    `logit_tokens` are the indices (into the tokens) whose logits are wanted, in that order.
    """

    block_size: int
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    row_of: list[int] = field(default_factory=list)
    row_starts: list[int] = field(default_factory=lambda: [0])
    tables: list[list[list[int]]] = field(default_factory=list)
    write_from: list[int] = field(default_factory=list)
    logit_tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SampleRow:
    """How one row of logits is sampled. `prompt_counts`/`output_counts` map token ids to how often
    they occur (penalties); `banned` are ids that may not come now (min_tokens: EOS and stops).
    `position` is the absolute position of the token to be sampled: with `seed` and `choice` it keys
    the noise. `top` is how many alternatives to report (None: no logprobs at all)."""

    seed: int
    choice: int
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_counts: dict[int, int] = field(default_factory=dict)
    output_counts: dict[int, int] = field(default_factory=dict)
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    top: int | None = None
    mask: bytes | None = None


@dataclass(slots=True)
class SampledRow:
    """`error` is set (and `token` meaningless) where the row's logits were not finite. Logprobs are
    of the raw logits; `top` best first, as (token, logprob)."""

    token: int
    logprob: float = 0.0
    rank: int = 0
    top: list[tuple[int, float]] = field(default_factory=list)
    error: str | None = None


class Ops(Protocol):
    """A backend. One object is chosen at start; there are no capability flags.

    Arrays are two-dimensional, (tokens, width). What is passed in may be some columns of a wider
    array (q, k and v of a fused product): values of a row are adjacent, rows need not be. An op
    writes to none of its arguments but the cache, and may return one of them. One that finds no
    memory raises MemoryError: executors fail the step's rows by it, and go on.
    """

    name: str
    notes: list[str]
    """What packing lost, in words, each said once."""

    @property
    def identity(self) -> str:
        """Everything of the backend that the bits of a result depend on: kernels' version,
        instruction set, mode. Equal identities and equal weights give equal tokens."""
        ...

    def recorded(
        self, forward: Callable[[Ops, Batch, Cache], Array]
    ) -> Callable[[Batch, Cache], Array]:
        """`forward` on these ops; a backend may record its calls once and replay them. So it must
        make the same calls for every batch, and only cut arrays into columns."""
        ...

    def pack(
        self, weights: Sequence[RawWeight], bias: Sequence[RawWeight] = (), exact: bool = False
    ) -> Weight:
        """Once, at load: weights stacked along their outputs (fused q, k, v) in the own layout.
        `exact`: as float32, whatever was asked for."""
        ...

    def bundle(
        self, experts: Sequence[tuple[Weight, Weight]], kind: str, spec: RoutingSpec
    ) -> Experts:
        """Once, at load: packed experts by number, the shared one last, each as what goes before
        the activation `kind` (gate and up stacked, if gated) and what comes after it. Raises
        ValueError where their shapes or their number do not fit."""
        ...

    def vector(self, weight: RawWeight) -> Array:
        """A norm's weight or bias, float32."""
        ...

    def upload(self, batch: HostBatch) -> Batch: ...

    def linear(self, x: Array, weight: Weight) -> Array:
        """(tokens, inputs) -> (tokens, outputs), bias included."""
        ...

    def embed(self, ids: Batch, table: Weight) -> Array:
        """The embeddings of the batch's tokens: (tokens, hidden)."""
        ...

    def embed_positions(self, batch: Batch, table: Weight, offset: int = 0) -> Array:
        """The table's rows at each token's position plus `offset`: (tokens, hidden)."""
        ...

    def experts(self, x: Array, scores: Array, experts: Experts) -> Array:
        """(tokens, hidden) through each token's experts, by the router's `scores`: the weighted sum
        of their outputs, in the order of their numbers: (tokens, hidden)."""
        ...

    def norm(
        self, x: Array, weight: Array, spec: NormSpec, residual: Array = None, bias: Array = None
    ) -> tuple[Array, Array]:
        """Adds `residual` to `x` first, if given; returns (normed, that sum). Where a row is
        several times as wide as the weight (heads), each piece of its width is normed by itself."""
        ...

    def rope_and_store(
        self,
        q: Array,
        k: Array,
        v: Array,
        cache: Cache,
        batch: Batch,
        rope: RopeSpec | None,
        spec: AttentionSpec,
    ) -> Array:
        """Rotates q and k, writes k and v to the cache (honouring write_from); returns q."""
        ...

    def attention(self, q: Array, cache: Cache, batch: Batch, spec: AttentionSpec) -> Array:
        """(tokens, heads * head_dim) -> same shape, causal, over the block tables."""
        ...

    def act(self, x: Array, kind: str) -> Array:
        """ "silu", "gelu", "gelu_tanh", "relu"; with "_gated" (tokens, 2 n) -> (tokens, n): the
        first half is the gate."""
        ...

    def add(self, x: Array, y: Array, scale: float = 1.0) -> Array: ...

    def scale(self, x: Array, factor: float) -> Array: ...

    def bound(self, x: Array, limit: float, smooth: bool = False) -> Array:
        """x cut off at +-limit or, smoothly, limit * tanh(x / limit)."""
        ...

    def logit_rows(self, x: Array, batch: Batch) -> Array:
        """The hidden rows whose logits are wanted."""
        ...

    def sample(self, logits: Array, rows: Sequence[SampleRow]) -> list[SampledRow]:
        """logits: (len(rows), vocabulary)."""
        ...

    def score(self, logits: Array, targets: Sequence[int], top: int) -> list[SampledRow]:
        """Prompt logprobs: row i tells of the known token targets[i]."""
        ...

    def allocate_cache(self, layout: CacheLayout, blocks: Sequence[int]) -> Cache:
        """`blocks[group]` blocks for each KV group."""
        ...

    def copy_blocks(self, cache: Cache, pairs: Sequence[tuple[int, int, int]]) -> None:
        """(group, source, target); all sources are read before any target is written."""
        ...

    def read_block(self, cache: Cache, group: int, block: int) -> bytes:
        """One block of a KV group, all its layers, as bytes of the backend's own layout: of the
        same length for every block of the group. Raises ValueError for one that does not exist."""
        ...

    def write_block(self, cache: Cache, group: int, block: int, data: bytes) -> None:
        """What `read_block` gave, here or in another cache of the same layout, into a block.
        Raises ValueError where the block does not exist or the length is another."""
        ...
