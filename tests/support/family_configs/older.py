"""Configurations of MPT, GPT-2, OPT, Falcon, Phi-3, GPT-J and StableLM.

Owns: their keys, each away from its default.
Does not know: weights, answers (golden_families).
"""

from __future__ import annotations

from typing import Any

VOCAB = 97

_MPT: dict[str, Any] = {
    "architectures": ["MPTForCausalLM"],
    "model_type": "mpt",
    "vocab_size": VOCAB,
    "d_model": 48,
    "n_heads": 6,
    "n_layers": 3,
    "max_seq_len": 64,
    "layer_norm_epsilon": 3e-2,
    "attn_config": {"alibi": True, "alibi_bias_max": 4, "clip_qkv": 0.75, "softmax_scale": 0.5},
}
_GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 48,
    "n_inner": 112,
    "layer_norm_epsilon": 3e-2,
    "activation_function": "relu",
    "scale_attn_by_inverse_layer_idx": True,
}
_OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "ffn_dim": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
}
_FALCON: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"],
    "model_type": "falcon",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "layer_norm_epsilon": 3e-2,
    "max_position_embeddings": 64,
}
_PHI3: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 3e-2,
    "rope_theta": 50000.0,
    "pad_token_id": 0,
}
_GPTJ: dict[str, Any] = {
    "architectures": ["GPTJForCausalLM"],
    "model_type": "gptj",
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 64,
    "n_inner": 112,
    "rotary_dim": 10,
    "layer_norm_epsilon": 3e-2,
    "activation_function": "relu",
}
_STABLELM: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"],
    "model_type": "stablelm",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "layer_norm_eps": 3e-2,
    "rope_theta": 50000.0,
    "use_qkv_bias": True,
}
_LONGROPE: dict[str, Any] = {
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 16,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
        "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0],
    },
}

CONFIGS: dict[str, dict[str, Any]] = {
    "mpt": _MPT,
    "mpt_biases": {**_MPT, "architectures": ["MptForCausalLM"], "no_bias": False},
    "gpt2": _GPT2,
    "gpt2_unscaled": {
        **_GPT2,
        "activation_function": "gelu",
        "n_inner": None,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": False,
        "tie_word_embeddings": False,
    },
    "opt": {**_OPT, "activation_function": "gelu", "tie_word_embeddings": False},
    "opt_without_biases": {**_OPT, "enable_bias": False},
    "falcon_7b": {**_FALCON, "rope_theta": 50000.0, "multi_query": True},
    "falcon_40b": {
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 112,
        "activation": "gelu_new",
        "tie_word_embeddings": False,
    },
    "falcon_11b": {
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
        "bias": True,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "falcon_rw": {
        **_FALCON,
        "hidden_size": 96,
        "num_attention_heads": 6,
        "alibi": True,
        "bias": True,
        "multi_query": False,
        "parallel_attn": False,
    },
    "phi3": {**_PHI3, "sliding_window": 20, "hidden_act": "gelu"},
    "phi3_long": {**_PHI3, **_LONGROPE},
    "phi3_short": {
        **_PHI3,
        **_LONGROPE,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 50,
    },
    "gptj": _GPTJ,
    "stablelm": {**_STABLELM, "partial_rotary_factor": 0.5},
    "stablelm_parallel": {
        **_STABLELM,
        "use_parallel_residual": True,
        "tie_word_embeddings": True,
    },
}

CONTEXTS = {"phi3_short": 50}

NEUTRAL: dict[str, set[str]] = {
    "mpt": {"max_seq_len", "attn_config.alibi"},
    "mpt_biases": {"max_seq_len", "attn_config.alibi"},
    "gpt2_unscaled": {"n_inner", "scale_attn_by_inverse_layer_idx"},
    "falcon_7b": {"multi_query"},
    "gptj": {"n_positions"},
}
"""Keys that say only what holds without them."""

SDPA = frozenset({"falcon_rw"})
"""transformers' own attention adds Falcon's ALiBi twice; torch's, its default, once."""
