"""The decoder's specification: what a family's config boils down to.

Owns: `DecoderSpec`, and which tensors it needs under which canonical names.
Does not know: config files (families), names in files, weights' formats, or how things are computed
(decoder, ops).

Canonical tensor names (a family's name map leads to them; `{i}` is the layer):
  embed, positions, final_norm, head,
  layers.{i}.attn_norm, .post_attn_norm, .mlp_norm, .post_mlp_norm, .q_norm, .k_norm,
  layers.{i}.q, .k, .v, .o, .gate, .up, .down,
  layers.{i}.router, .experts.{e}.gate, .up, .down, .shared_router, .shared.gate, .up, .down;
with ".bias" after it for the bias of each.
Matrices are (outputs, inputs); q and k rows are in the order that `RopeSpec` of the layer expects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from octavo.ops import AttentionSpec, NormSpec, RawWeight, RopeSpec, RoutingSpec


@dataclass(frozen=True, slots=True)
class MatrixSpec:
    """A matrix as the decoder multiplies by it: `parts` (canonical name, outputs) stacked along
    their outputs; `exact`: as float32, whatever the others are packed as."""

    parts: tuple[tuple[str, int], ...]
    inputs: int
    bias: bool = False
    exact: bool = False

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, outputs in self.parts:
            yield name, (outputs, self.inputs)
            if self.bias:
                yield f"{name}.bias", (outputs,)


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Routed experts in place of the MLP: `width` is the intermediate one of each, `shared_width`
    that of the shared one, if `routing` has it."""

    routing: RoutingSpec
    width: int
    shared_width: int = 0

    def names(self) -> Iterator[tuple[str, int]]:
        """The experts by number, as (name within the layer, intermediate width)."""
        for number in range(self.routing.count):
            yield f"experts.{number}", self.width
        if self.routing.shared:
            yield "shared", self.shared_width


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: x = x + attention(norm(x)); x = x + mlp(norm(x)). `experts`: in place of an MLP of
    width `intermediate`.

    `parallel`: x = x + attention(norm(x)) + mlp(norm(x)), both of the same x; `mlp_norm` None: the
    MLP takes what attention takes. `post_attn_norm` and `post_mlp_norm` norm what is to be added.
    `q_norm` and `k_norm` norm each head. `qkv_bound`: q, k and v are cut off at +-it (0: not).
    """

    attention: AttentionSpec
    rope: RopeSpec | None
    attn_norm: NormSpec
    mlp_norm: NormSpec | None
    intermediate: int
    activation: str
    """An `Ops.act` kind; gated ones ("silu_gated") take gate and up."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    parallel: bool = False
    post_attn_norm: NormSpec | None = None
    post_mlp_norm: NormSpec | None = None
    q_norm: NormSpec | None = None
    k_norm: NormSpec | None = None
    qkv_bound: float = 0.0
    experts: ExpertsSpec | None = None

    @property
    def gated(self) -> bool:
        return self.activation.endswith("_gated")

    def matrices(self, hidden: int) -> Mapping[str, MatrixSpec]:
        """The layer's matrices by what they are for; parts' names are without "layers.{i}."."""
        attention = self.attention
        q = attention.heads * attention.head_dim
        kv = attention.kv_heads * attention.head_dim
        found = {
            "qkv": MatrixSpec((("q", q), ("k", kv), ("v", kv)), hidden, self.qkv_bias),
            "o": MatrixSpec((("o", hidden),), q, self.o_bias),
        }
        if self.experts is None:
            return found | self._mlp("", self.intermediate, hidden)
        scores = [("router", self.experts.routing.count)]
        if self.experts.routing.shared:
            scores.append(("shared_router", 1))
        found["router"] = MatrixSpec(tuple(scores), hidden, exact=True)
        for name, width in self.experts.names():
            found |= self._mlp(f"{name}.", width, hidden)
        return found

    def _mlp(self, at: str, width: int, hidden: int) -> dict[str, MatrixSpec]:
        up = (("gate", width), ("up", width)) if self.gated else (("up", width),)
        parts = tuple((at + name, outputs) for name, outputs in up)
        return {
            f"{at}up": MatrixSpec(parts, hidden, self.mlp_bias),
            f"{at}down": MatrixSpec(((f"{at}down", hidden),), width, self.mlp_bias),
        }

    def mlp_values(self, hidden: int) -> int:
        """Activations of one token that the MLP holds at once."""
        if self.experts is None:
            return 3 * self.intermediate
        # One expert after another, each with its rows gathered; and the router's scores.
        widest = max(width for _, width in self.experts.names())
        return 3 * widest + hidden + self.experts.routing.scores

    def norms(self, hidden: int) -> Mapping[str, tuple[NormSpec, int]]:
        """The layer's norms, and the width of each."""
        found = {
            "attn_norm": (self.attn_norm, hidden),
            "mlp_norm": (self.mlp_norm, hidden),
            "post_attn_norm": (self.post_attn_norm, hidden),
            "post_mlp_norm": (self.post_mlp_norm, hidden),
            "q_norm": (self.q_norm, self.attention.head_dim),
            "k_norm": (self.k_norm, self.attention.head_dim),
        }
        return {name: (norm, width) for name, (norm, width) in found.items() if norm is not None}


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """`vocab` is the number of rows of the embedding and the head; ids from `vocab_used` on are
    padding and are never sampled.

    `positions`: rows of a table of learned positions (0: none), of which the token at position p
    gets row p + `position_offset`. `logit_bound`: logits are limit * tanh(logits / limit).
    """

    vocab: int
    vocab_used: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    tied: bool
    head_bias: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_bound: float = 0.0
    positions: int = 0
    position_offset: int = 0

    def matrices(self) -> Iterator[MatrixSpec]:
        """All matrices, each as the decoder packs it, with full canonical names."""
        yield MatrixSpec((("embed", self.vocab),), self.hidden)
        if self.positions:
            yield MatrixSpec((("positions", self.positions),), self.hidden)
        if not self.tied:
            yield MatrixSpec((("head", self.vocab),), self.hidden, self.head_bias)
        for i, layer in enumerate(self.layers):
            for matrix in layer.matrices(self.hidden).values():
                parts = tuple((f"layers.{i}.{name}", n) for name, n in matrix.parts)
                yield replace(matrix, parts=parts)

    def norms(self) -> Iterator[tuple[str, NormSpec, int]]:
        """All norms: canonical name, norm, width."""
        yield "final_norm", self.final_norm, self.hidden
        for i, layer in enumerate(self.layers):
            for name, (norm, width) in layer.norms(self.hidden).items():
                yield f"layers.{i}.{name}", norm, width


class WeightSource(Protocol):
    """Where tensors come from, by canonical name. Checked against the spec before anything is
    read: missing, extra and misshapen tensors are one error that names them all."""

    def get(self, name: str) -> RawWeight: ...

    def has(self, name: str) -> bool: ...

    def done(self, name: str) -> None:
        """It has been packed: what reading it took may go."""
        ...

    def close(self) -> None: ...
