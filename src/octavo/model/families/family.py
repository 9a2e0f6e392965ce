"""What a family of models is: how its configuration becomes a spec, and its tensors' names.

Owns: `Family`, and the reading that LLaMA-like families share.
Does not know: files. A family is data and one function; nothing here is subclassed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.model.families.fields import Fields
from octavo.model.families.shape import read_activation, read_shape
from octavo.model.places import NameMap
from octavo.model.rope import RopeConfig, parse_rope
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import NormSpec

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
    "layers.{i}.q_norm": "model.layers.{i}.self_attn.q_norm",
    "layers.{i}.k_norm": "model.layers.{i}.self_attn.k_norm",
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
    "layers.{i}.q_norm": "blk.{i}.attn_q_norm",
    "layers.{i}.k_norm": "blk.{i}.attn_k_norm",
    "layers.{i}.gate": "blk.{i}.ffn_gate",
    "layers.{i}.up": "blk.{i}.ffn_up",
    "layers.{i}.down": "blk.{i}.ffn_down",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration, understood. `max_position` is the longest context the model is made for;
    `build(context)` makes the spec for an engine whose sequences are at most that long. `names`
    replace some of the family's, where the configuration decides what tensors are called."""

    build: Callable[[int], DecoderSpec]
    max_position: int
    names: NameMap = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPart:
    """The text model within a checkpoint. Its configuration lies under `config`; `defaults` are for
    what both that and the whole leave out. Its tensors' names begin with one of `prefixes`, which
    lead to how they would begin were it alone; those of all the rest begin with one of `others`."""

    config: str
    defaults: Mapping[str, Any]
    prefixes: Mapping[str, str]
    others: tuple[str, ...]

    def fields(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration as the text model would have it alone."""
        own = whole.get(self.config)
        own = own if isinstance(own, dict) else {}
        return {**self.defaults, **whole, **{k: v for k, v in own.items() if v is not None}}

    def name(self, name: str) -> str | None:
        """A tensor's name, were the text model alone; None where it is not the text model's."""
        if name.startswith(self.others):
            return None
        for prefix, alone in self.prefixes.items():
            if name.startswith(prefix):
                return alone + name.removeprefix(prefix)
        return name


@dataclass(frozen=True, slots=True)
class Family:
    """`read(fields, divisors)` understands a configuration; `divisors` are GGUF's rope_freqs.

    `gguf_permuted`: the family's GGUF files keep q and k in the row order of interleaved rope.
    `routed`: it is the one of its GGUF architecture that has experts.
    `hf_stacked`: names in checkpoints that hold a layer's experts in tensors of three dimensions.
    `hf_transposed`: parts of a layer whose matrices lie as (inputs, outputs) in checkpoints.
    `hf_ignored`: how names end of buffers that old checkpoints hold and nothing needs.
    `hf_text`: for models that also see or hear, how to find the text model in them (None: it is the
    whole).
    For people: `summary` says what is special about it, `context` how long sequences may be.
    `hf_prefix`: what names begin with, except in checkpoints saved without a head.
    `also`: further names of the architecture. `own_code`: classes that come with checkpoints of
    this family and compute the very same ("modeling_x.XForCausalLM"); they are never run.
    """

    architecture: str
    model_type: str
    gguf_architecture: str | None
    read: Callable[[Fields, tuple[float, ...]], Plan]
    gguf_permuted: bool = False
    hf_names: NameMap = field(default_factory=lambda: HF_NAMES)
    gguf_names: NameMap = field(default_factory=lambda: GGUF_NAMES)
    routed: bool = False
    hf_stacked: NameMap = field(default_factory=dict)
    hf_transposed: tuple[str, ...] = ()
    hf_ignored: tuple[str, ...] = ()
    hf_text: TextPart | None = None
    summary: str = ""
    context: str = "the model's own"
    hf_prefix: str = ""
    also: tuple[str, ...] = ()
    own_code: tuple[str, ...] = ()

    def named(self, plan: Plan) -> Family:
        """The family with the names of tensors that `plan` found."""
        if not plan.names:
            return self
        hf, gguf = {**self.hf_names, **plan.names}, {**self.gguf_names, **plan.names}
        return replace(self, hf_names=hf, gguf_names=gguf)


def read_llama_like(
    fields: Fields,
    divisors: tuple[float, ...],
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    tied: bool = False,
    head_norms: bool = False,
    windows: Sequence[int] = (),
    rotated: Sequence[bool] = (),
) -> Plan:
    """Pre-norm layers with RMSNorm, rope, grouped-query attention and a gated MLP.

    `tied`: whether the head is the embedding where the key is missing. `head_norms`: each head of q
    and k is normed. `windows` and `rotated` have an entry for each layer, or none: how far it sees
    (0: everything), and whether it has rope (no entries: it has).

    Raises ModelError naming the key that is missing, misshapen or unsupported.
    """
    shape, rope = read_shape(fields), read_rope(fields, divisors)
    norm = NormSpec("rms", fields.number("rms_norm_eps", 1e-6))
    activation = read_activation(fields, "silu", gated=True)
    intermediate = fields.size("intermediate_size")
    tied = fields.flag("tie_word_embeddings", tied)
    head_norm = norm if head_norms else None

    def build(context: int) -> DecoderSpec:
        turned = rope.build(context)
        layers = [
            LayerSpec(
                attention=shape.attention(window=windows[i] if windows else 0),
                rope=turned if not rotated or rotated[i] else None,
                attn_norm=norm,
                mlp_norm=norm,
                intermediate=intermediate,
                activation=activation,
                qkv_bias=qkv_bias,
                o_bias=o_bias,
                mlp_bias=mlp_bias,
                q_norm=head_norm,
                k_norm=head_norm,
            )
            for i in range(shape.layers)
        ]
        return shape.decoder(layers, norm, tied=tied, context=context)

    return Plan(build, rope.context())


def read_rope(fields: Fields, divisors: tuple[float, ...] = ()) -> RopeConfig:
    """The rope of all layers alike. Raises ModelError."""
    fields.size("max_position_embeddings")
    return parse_rope(fields.common(), read_shape(fields).head_dim, divisors)
