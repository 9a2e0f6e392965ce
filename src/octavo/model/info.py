"""What is known of a model before its weights are read: the facts that planning and serving need.

Owns: `ModelInfo`, plain data.
Does not know: file formats (registry, gguf, weights) or arithmetic (decoder).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LOGIT_ROWS = 64
"""Rows of logits held at once: bounds their memory, however many are wanted."""


@dataclass(frozen=True, slots=True)
class Pack:
    """`count` times matrices that are packed as one; `parts` has the `RawWeight.format` and the
    outputs of each. `exact`: they are packed as float32."""

    parts: tuple[tuple[str, int], ...]
    inputs: int
    count: int
    exact: bool = False


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that see equally far: `window` positions, the token itself included (0: all)."""

    window: int
    layers: int
    bytes_per_token: int
    """Keys and values of these layers."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about one model. Byte figures are of the reference backend, which holds everything in
    float32; `sizes.sized` gives those of another.

    `packs` are all its matrices (none: not known). `kv_bytes_per_token` counts keys and values of
    all layers; `kv_groups` has them by window, in the order of the block tables (none: all layers
    see everything). `generation` holds the defaults of generation_config (temperature, top_p,
    top_k, repetition_penalty ...), already reduced to SamplingParams names; `do_sample: false` is
    temperature 0. `eos_token_ids` is the union of what config, generation_config and tokenizer say.
    """

    path: str
    name: str
    architecture: str
    format: str
    """"safetensors" or "gguf"."""
    quantization: str
    parameters: int
    vocab_size: int
    """Rows of the embedding: ids from 0 to vocab_size - 1 are valid."""
    max_position: int
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: int
    kv_bytes_per_token: int
    workspace_bytes_per_token: int
    """Activations of one token of a step."""
    workspace_bytes: int
    """Logits: `LOGIT_ROWS` rows, whatever the step."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    generation: dict[str, Any] = field(default_factory=dict)
    tokenizer_files: tuple[str, ...] = ()
    file_bytes: int = 0
    """Of the weights' files."""
    vocab_used: int = 0
    """Rows of the embedding that have a token; the others are never sampled."""
    tied: bool = False
    """The embedding serves as the head too."""
    rope: str = ""
    """The kind of rope scaling and its factor, e.g. "yarn, factor 4"; empty: none."""
    packs: tuple[Pack, ...] = ()
    kv_groups: tuple[KvGroup, ...] = ()
