"""Configurations of tiny models with routed experts, for the golden logits.

Sizes are such that no router is so near a tie that weights rounded to bf16 choose other experts."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-2,
    "rope_theta": 50000.0,
}
_QWEN: dict[str, Any] = {
    **_COMMON,
    "num_hidden_layers": 4,
    "num_experts": 6,
    "moe_intermediate_size": 40,
    "hidden_act": "gelu_pytorch_tanh",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mixtral": {
        **_COMMON,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 2,
        "num_local_experts": 5,
        "hidden_act": "gelu",
        "head_dim": 32,
        "tie_word_embeddings": True,
        "sliding_window": 11,
    },
    "qwen2_moe": {
        **_QWEN,
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_hidden_layers": 2,
        "shared_expert_intermediate_size": 56,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "qkv_bias": False,
        "tie_word_embeddings": True,
    },
    "qwen3_moe": {
        **_QWEN,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": 24,
        "attention_bias": True,
        "norm_topk_prob": True,
        "mlp_only_layers": [0, 2],
        "tie_word_embeddings": True,
    },
    # As released: every layer has experts, whose weights do not add up to one.
    "qwen2_moe_plain": {
        **_QWEN,
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_hidden_layers": 2,
        "num_experts": 7,
        "hidden_size": 32,
        "shared_expert_intermediate_size": 24,
    },
}
