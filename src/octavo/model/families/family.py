"""What a family of models is: how its configuration becomes a spec, and its tensors' names.

Owns: `Family`, and the reading that LLaMA-like families share.
Does not know: files. A family is data and one function; nothing here is subclassed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.model.families.fields import Fields
from octavo.model.places import NameMap
from octavo.model.rope import RopeConfig, parse_rope
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import AttentionSpec, NormSpec

HF_NAMES = {
    "embed": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "layers.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj",
    "layers.{i}.o": "model.layers.{i}.self_attn.o_proj",
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj",
    "layers.{i}.down": "model.layers.{i}.mlp.down_proj",
}
"""Canonical module -> module in a Hugging Face checkpoint (".weight" and ".bias" follow)."""

GGUF_NAMES = {
    "embed": "token_embd",
    "final_norm": "output_norm",
    "head": "output",
    "layers.{i}.attn_norm": "blk.{i}.attn_norm",
    "layers.{i}.mlp_norm": "blk.{i}.ffn_norm",
    "layers.{i}.q": "blk.{i}.attn_q",
    "layers.{i}.k": "blk.{i}.attn_k",
    "layers.{i}.v": "blk.{i}.attn_v",
    "layers.{i}.o": "blk.{i}.attn_output",
    "layers.{i}.gate": "blk.{i}.ffn_gate",
    "layers.{i}.up": "blk.{i}.ffn_up",
    "layers.{i}.down": "blk.{i}.ffn_down",
}

ACTIVATIONS = {
    "silu": "silu_gated",
    "swish": "silu_gated",
    "gelu": "gelu_gated",
    "gelu_new": "gelu_tanh_gated",
    "gelu_pytorch_tanh": "gelu_tanh_gated",
    "relu": "relu_gated",
}

MAX_LAYERS = 4096
MAX_HEAD_DIM = 1 << 16
"""Both far beyond any model: what exceeds them is damaged or hostile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration, understood. `max_position` is the longest context the model is made for;
    `build(context)` makes the spec for an engine whose sequences are at most that long."""

    build: Callable[[int], DecoderSpec]
    max_position: int


@dataclass(frozen=True, slots=True)
class Family:
    """`read(fields, divisors)` understands a configuration; `divisors` are GGUF's rope_freqs.

    `gguf_permuted`: the family's GGUF files keep q and k in the row order of interleaved rope.
    `hf_transposed`: parts of a layer whose matrices lie as (inputs, outputs) in checkpoints.
    """

    architecture: str
    model_type: str
    gguf_architecture: str | None
    read: Callable[[Fields, tuple[float, ...]], Plan]
    gguf_permuted: bool = False
    hf_names: NameMap = field(default_factory=lambda: HF_NAMES)
    gguf_names: NameMap = field(default_factory=lambda: GGUF_NAMES)
    hf_transposed: tuple[str, ...] = ()


def read_llama_like(
    fields: Fields,
    divisors: tuple[float, ...],
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
) -> Plan:
    """Pre-norm layers with RMSNorm, rope, grouped-query attention and a gated MLP.

    Raises ModelError naming the key that is missing, misshapen or unsupported.
    """
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
    rope = _rope(fields, head_dim, divisors)
    layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    activation = fields.text("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise fields.bad("hidden_act", activation, f"one of {', '.join(ACTIVATIONS)}")
    norm = NormSpec("rms", fields.number("rms_norm_eps", 1e-6))
    vocab = fields.size("vocab_size")
    vocab_used = fields.size("vocab_used", vocab)
    intermediate = fields.size("intermediate_size")
    tied = fields.flag("tie_word_embeddings")

    def build(context: int) -> DecoderSpec:
        rope_spec = rope.build(context)
        return DecoderSpec(
            vocab=vocab,
            vocab_used=vocab_used,
            hidden=hidden,
            layers=tuple(
                LayerSpec(
                    attention=AttentionSpec(i, heads, kv_heads, head_dim, head_dim**-0.5),
                    rope=rope_spec,
                    attn_norm=norm,
                    mlp_norm=norm,
                    intermediate=intermediate,
                    activation=ACTIVATIONS[activation],
                    qkv_bias=qkv_bias,
                    o_bias=o_bias,
                    mlp_bias=mlp_bias,
                )
                for i in range(layers)
            ),
            final_norm=norm,
            tied=tied,
        )

    return Plan(build, rope.context())


def _rope(fields: Fields, head_dim: int, divisors: tuple[float, ...]) -> RopeConfig:
    fields.size("max_position_embeddings")
    return parse_rope(fields.values, head_dim, divisors)
