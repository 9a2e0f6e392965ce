"""A LLaMA written straight from the paper, float64, no cache: an oracle for the decoder.

Owns: the arithmetic, once more and independently of octavo.ops.
"""

from __future__ import annotations

import numpy as np

from support.tiny_models import TinyModel


def dense_logits(model: TinyModel, ids: list[int]) -> np.ndarray:
    """(len(ids), vocab) float64."""
    spec = model.spec
    weights = {name: t.astype(np.float64) for name, t in model.tensors.items()}

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[name].T + weights.get(f"{name}.bias", 0.0)

    def norm(x: np.ndarray, name: str, eps: float) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weights[name]

    x = weights["embed"][ids] * spec.embed_scale
    count = len(ids)
    for i, layer in enumerate(spec.layers):
        at, a = f"layers.{i}.", layer.attention
        h = norm(x, at + "attn_norm", layer.attn_norm.eps)
        q = linear(h, at + "q").reshape(count, a.heads, a.head_dim)
        k = linear(h, at + "k").reshape(count, a.kv_heads, a.head_dim)
        v = linear(h, at + "v").reshape(count, a.kv_heads, a.head_dim)
        assert layer.rope is not None
        angles = np.outer(np.arange(count), layer.rope.inverse_frequencies)
        turn = np.exp(1j * angles)[:, None]
        half = a.head_dim // 2

        def rotated(t: np.ndarray, half: int = half, turn: np.ndarray = turn) -> np.ndarray:
            z = (t[..., :half] + 1j * t[..., half:]) * turn
            return np.concatenate([z.real, z.imag], -1)

        q, k = rotated(q), rotated(k)
        out = np.zeros_like(q)
        for head in range(a.heads):
            kv = head * a.kv_heads // a.heads
            scores = q[:, head] @ k[:, kv].T * a.scale
            scores[np.triu_indices(count, 1)] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = share / share.sum(-1, keepdims=True) @ v[:, kv]
        x = x + linear(out.reshape(count, -1), at + "o")
        h = norm(x, at + "mlp_norm", layer.mlp_norm.eps)
        gate = linear(h, at + "gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, at + "up"), at + "down")
    h = norm(x, "final_norm", spec.final_norm.eps)
    return linear(h, "embed" if spec.tied else "head") * spec.logit_scale


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
