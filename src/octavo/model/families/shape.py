"""The sizes that every family has, and the spec made of its layers.

Owns: `Shape`, the reading of sizes, the activations' names, which layers share a KV group.
Does not know: what a layer is made of (the families say that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.model.families.fields import Fields
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import AttentionSpec, NormSpec

MAX_LAYERS = 4096
MAX_HEAD_DIM = 1 << 16
"""Both far beyond any model: what exceeds them is damaged or hostile."""

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""transformers' names -> `Ops.act` kinds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`vocab_used`: ids from it on are padding."""

    vocab: int
    vocab_used: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def attention(
        self,
        *,
        scale: float | None = None,
        window: int = 0,
        softcap: float = 0.0,
        alibi_slopes: tuple[float, ...] = (),
    ) -> AttentionSpec:
        """A layer's attention; `decoder` gives it its place in the cache. `scale` None: one over
        the root of a head's width."""
        return AttentionSpec(
            layer=0,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5 if scale is None else scale,
            window=window,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        )

    def decoder(
        self,
        layers: Sequence[LayerSpec],
        final_norm: NormSpec,
        *,
        tied: bool,
        context: int,
        **rest: Any,
    ) -> DecoderSpec:
        """The whole; `rest` are further fields of DecoderSpec. A window that reaches over the whole
        `context` is none."""
        return DecoderSpec(
            vocab=self.vocab,
            vocab_used=self.vocab_used,
            hidden=self.hidden,
            layers=_placed(layers, context),
            final_norm=final_norm,
            tied=tied,
            **rest,
        )


def _placed(layers: Sequence[LayerSpec], context: int) -> tuple[LayerSpec, ...]:
    """Layers of equal windows share a KV group; groups are numbered as they first occur."""
    counts: dict[int, int] = {}
    result = []
    for layer in layers:
        window = layer.attention.window if layer.attention.window < context else 0
        index = counts.setdefault(window, 0)
        counts[window] += 1
        group = list(counts).index(window)
        result.append(
            replace(
                layer, attention=replace(layer.attention, layer=index, group=group, window=window)
            )
        )
    return tuple(result)


def read_shape(fields: Fields) -> Shape:
    """Raises ModelError naming the key that is missing or does not fit the others."""
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.bad("num_key_value_heads", kv_heads, f"a divisor of {heads} attention heads")
    head_dim = fields.optional_size("head_dim", MAX_HEAD_DIM)
    if head_dim is None:
        if hidden % heads:
            raise fields.bad("hidden_size", hidden, f"a multiple of {heads} attention heads")
        head_dim = hidden // heads
        if head_dim > MAX_HEAD_DIM:
            raise fields.bad("hidden_size", hidden, f"{MAX_HEAD_DIM} dimensions a head at most")
    vocab = fields.size("vocab_size")
    return Shape(
        vocab=vocab,
        vocab_used=fields.size("vocab_used", vocab),
        hidden=hidden,
        layers=fields.size("num_hidden_layers", limit=MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def read_activation(
    fields: Fields, default: str | None = None, *, key: str = "hidden_act", gated: bool = False
) -> str:
    """The `Ops.act` kind that `key` names."""
    name = fields.text(key) if default is None else fields.text(key, default)
    if name not in ACTIVATIONS:
        raise fields.bad(key, name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name] + ("_gated" if gated else "")
