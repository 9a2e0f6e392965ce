"""Tiny checkpoints of every family whose right answers lie in tests/golden/families.

Owns: their configurations, and weights that follow from a tensor's name and shape alone. Needs
numpy and safetensors, so that the tests and the script that asks transformers make the very same
files; the names and shapes are transformers' own, kept beside the answers.
Does not know: Octavo, torch.

Every field of a configuration is away from its default, every norm weight away from its neutral
value and every bias away from 0, so that a field that is dropped shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support import golden_models
from support.family_configs import moe, newer, older
from support.family_configs.long import LONG

GOLDEN = Path(__file__).parents[1] / "golden" / "families"
VOCAB, TOKENS = 97, 48

_NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "rotary_pct": 0.5,
    "rotary_emb_base": 50000,
    "max_position_embeddings": 64,
    "layer_norm_eps": 3e-2,
}

CONFIGS: dict[str, dict[str, Any]] = {
    **moe.CONFIGS,
    "gpt_neox": _NEOX,
    "gpt_neox_sequential": {
        **_NEOX,
        "use_parallel_residual": False,
        "attention_bias": False,
        "hidden_act": "gelu_new",
        "rotary_pct": 1.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": True,
    },
    **older.CONFIGS,
    **newer.CONFIGS,
}

NEUTRAL = (
    frozenset(
        {"architectures", "model_type", "max_position_embeddings", "vocab_size", "pad_token_id"}
    )
    | newer.NEUTRAL
)
"""Keys whose loss does not change the logits of a checkpoint that still loads."""

NEUTRAL_IN: dict[str, set[str]] = {**older.NEUTRAL, "qwen3": {"rope_parameters.rope_type"}}
"""Further ones, by configuration."""

CONTEXTS: dict[str, int] = {**older.CONTEXTS}
"""The context that the engine is started with, where it is not the longest: it fixes ropes that
depend on the length."""


def without_each_key(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration `name` without each of its keys that matter, and without each key of the
    objects in it ("outer.inner")."""
    config, neutral = CONFIGS[name], NEUTRAL | NEUTRAL_IN.get(name, set())
    for key, value in config.items():
        if key not in neutral:
            yield key, {k: v for k, v in config.items() if k != key}
        for inner in value if isinstance(value, dict) and key not in neutral else ():
            if inner not in neutral and f"{key}.{inner}" not in neutral:
                rest = {k: v for k, v in value.items() if k != inner}
                yield f"{key}.{inner}", {**config, key: rest}


def token_ids(name: str) -> np.ndarray:
    count = LONG[name][1] if name in LONG else TOKENS
    rng = np.random.default_rng([len(name), count])
    return rng.integers(0, VOCAB, count)


def tensors(shapes: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    """float32 weights for tensors of those names and shapes."""
    result = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if len(shape) > 1:
            spread = 1.4 / np.sqrt(min(shape[-2:]))
            if "embed" in name or "wte" in name or "wpe" in name:
                spread = 0.8
            values = rng.normal(0, spread, shape)
        elif "bias" in name:
            values = rng.normal(0, 0.4, shape)
        else:
            values = rng.uniform(0.5, 1.6, shape)
        result[name] = values.astype(np.float32)
    return result


def write_checkpoint(
    directory: Path, config: Mapping[str, Any], shapes: Mapping[str, list[int]]
) -> Path:
    """A Hugging Face directory with those tensors, float32."""
    directory.mkdir(parents=True, exist_ok=True)
    golden_models.write_config(directory, dict(config))
    golden_models.save(directory / "model.safetensors", tensors(shapes))
    return directory
