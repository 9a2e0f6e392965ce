"""The decoder's specification: what a family's config boils down to.

Owns: `DecoderSpec` and the canonical names of tensors.
Does not know: config files (families), weights' formats, or how things are computed (decoder, ops).

Canonical tensor names (a family's name map leads to them; `{i}` is the layer):
  embed, final_norm, final_norm.bias, head, head.bias,
  layers.{i}.attn_norm, layers.{i}.mlp_norm (and .bias),
  layers.{i}.q, .k, .v, .o, .gate, .up, .down (and .bias of each).
Matrices are (outputs, inputs); q and k rows are in the order that `RopeSpec` of the layer expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.ops import AttentionSpec, NormSpec, RawWeight, RopeSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    attention: AttentionSpec
    rope: RopeSpec | None
    attn_norm: NormSpec
    mlp_norm: NormSpec
    intermediate: int
    activation: str
    """An `Ops.act` kind; gated ones ("silu_gated") take gate and up."""
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """`vocab` is the number of rows of the embedding and the head; ids from `vocab_used` on are
    padding and are never sampled."""

    vocab: int
    vocab_used: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    tied: bool
    head_bias: bool = False
    embed_scale: float = 1.0
    logit_scale: float = 1.0


class WeightSource(Protocol):
    """Where tensors come from, by canonical name. Checked against the spec before anything is
    read: missing, extra and misshapen tensors are one error that names them all."""

    def get(self, name: str) -> RawWeight: ...

    def has(self, name: str) -> bool: ...

    def done(self, name: str) -> None:
        """It has been packed: what reading it took may go."""
        ...

    def close(self) -> None: ...
