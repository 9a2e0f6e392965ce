"""Checkpoints of one layer whose answers are kept at the length that their models are made for.

Owns: their configurations, lengths, and how many of the last logits are kept.
Does not know: weights, answers (golden_families).
"""

from __future__ import annotations

from typing import Any

VOCAB = 97
ROWS = 4
"""The last tokens' logits are kept, for all before them weigh in there."""

LONG: dict[str, tuple[dict[str, Any], int]] = {
    "gpt_neox_4096": (
        {
            "architectures": ["GPTNeoXForCausalLM"],
            "model_type": "gpt_neox",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "rotary_pct": 0.5,
            "rotary_emb_base": 50000,
            "max_position_embeddings": 4096,
        },
        4096,
    ),
    "mpt_8192": (
        {
            "architectures": ["MPTForCausalLM"],
            "model_type": "mpt",
            "vocab_size": VOCAB,
            "d_model": 48,
            "n_heads": 3,
            "n_layers": 1,
            "max_seq_len": 8192,
            # Slopes down to 2 ** -16: the farthest tokens weigh nearly as much as the nearest.
            "attn_config": {"alibi_bias_max": 16, "clip_qkv": 1.5},
        },
        8192,
    ),
    "llama_32768": (
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
        32768,
    ),
}
"""Name -> configuration, tokens."""
