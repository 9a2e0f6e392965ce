"""LLaMA, Mistral and their relatives with windows, normed heads or layers without rope; Gemma.

Owns: configurations for golden logits, every key of which is away from its default. Windows and
original contexts are shorter than the test's sequence.
Does not know: how they are used.
"""

from __future__ import annotations

from typing import Any

_BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-2,
}
_LLAMA = {**_BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
_QWEN2 = {**_BASE, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_GEMMA = {**_BASE, "architectures": ["GemmaForCausalLM"], "model_type": "gemma"}
_GEMMA3 = {**_BASE, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
_SLIDING, _FULL = "sliding_attention", "full_attention"

CONFIGS: dict[str, dict[str, Any]] = {
    # A key-value head for each head where the key is missing; pretraining_tp changes nothing.
    "llama1": {
        **{k: v for k, v in _LLAMA.items() if k != "num_key_value_heads"},
        "hidden_act": "gelu",
        "pretraining_tp": 2,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "llama31": {
        **_LLAMA,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "tie_word_embeddings": True,
    },
    "mistral_window": {
        **_BASE,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "head_dim": 12,
        "hidden_act": "relu",
        "rope_theta": 700000.0,
        "sliding_window": 9,
    },
    "qwen2_window": {
        **_QWEN2,
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 2,
        "rope_theta": 1000000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "qwen3": {
        **_BASE,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "attention_bias": True,
        "tie_word_embeddings": True,
        "use_sliding_window": True,
        "sliding_window": 13,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "smollm3": {
        **_BASE,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "pad_token_id": 0,
        "hidden_act": "gelu",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "use_sliding_window": True,
        "sliding_window": 7,
        "no_rope_layers": [1, 0, 1, 0],
        "rope_theta": 50000.0,
    },
    "smollm3_interval": {
        **_BASE,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "pad_token_id": 0,
        "sliding_window": 8,
        "no_rope_layer_interval": 3,
        "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
    },
    "gemma": {
        **_GEMMA,
        "head_dim": 24,
        "hidden_act": "silu",
        "attention_bias": True,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
    },
    "gemma2": {
        **_BASE,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 24,
        "hidden_activation": "silu",
        "attention_bias": True,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 7,
        "rope_theta": 50000.0,
        "sliding_window": 8,
        "tie_word_embeddings": False,
    },
    "gemma2_plain": {
        **_BASE,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 16,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "query_pre_attn_scalar": 16,
        "sliding_window": 10,
        "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 30000.0},
    },
    "gemma3": {
        **_GEMMA3,
        "head_dim": 24,
        "hidden_activation": "silu",
        "attention_bias": True,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 9,
        "rope_theta": 200000.0,
        "rope_local_base_freq": 500.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "tie_word_embeddings": False,
    },
    "gemma3_types": {
        **_GEMMA3,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 12,
        "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
        "rope_parameters": {
            _SLIDING: {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0},
            _FULL: {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "rope_theta": 300000.0,
            },
        },
    },
    "gemma3_pictures": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            **_BASE,
            "model_type": "gemma3_text",
            "head_dim": 24,
            "query_pre_attn_scalar": 9,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "sliding_window": 8,
            "sliding_window_pattern": 3,
        },
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
            "image_size": 28,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 4,
        "image_token_index": 96,
        "boi_token_index": 95,
        "eoi_token_index": 94,
    },
    # As llama.cpp's files can say it: what they imply is at its default here.
    "qwen3_gguf": {
        **_BASE,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 24,
        "rope_theta": 1000000.0,
    },
    "smollm3_gguf": {
        **_BASE,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "pad_token_id": 0,
        "rope_theta": 50000.0,
    },
    "gemma_gguf": {**_GEMMA, "head_dim": 24, "rope_theta": 50000.0},
    "gemma2_gguf": {
        **_BASE,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "head_dim": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 24,
        "rope_theta": 50000.0,
        "sliding_window": 8,
    },
    "gemma3_gguf": {
        **_GEMMA3,
        "num_hidden_layers": 7,
        "head_dim": 24,
        "query_pre_attn_scalar": 24,
        "rope_theta": 200000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "sliding_window": 8,
    },
}

NEUTRAL = frozenset(
    {
        *("pad_token_id", "pretraining_tp", "vision_config", "mm_tokens_per_image"),
        *("image_token_index", "boi_token_index", "eoi_token_index"),
    }
)
"""Keys that change nothing in texts."""
