"""The decoder: one loop over layers, driven by a `DecoderSpec` and written against the ops alone.

Owns: which op follows which, and the weights packed for it.
Does not know: numpy, torch, files, requests, sampling. Arrays are the backend's; it passes and
slices them.

    x = embed(ids)
    for each layer:  x = x + attention(norm(x));  x = x + mlp(norm(x))
    logits = head(norm(x))

The sum is kept in `residual` and done inside `norm`, so that a backend can fuse the two.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from octavo.model.spec import DecoderSpec, LayerSpec, WeightSource
from octavo.ops import Array, Batch, Cache, NormSpec, Ops, Weight


class Decoder:
    """Packs all weights of `source` at construction, on `threads` threads; the source may be closed
    afterwards."""

    def __init__(self, spec: DecoderSpec, source: WeightSource, ops: Ops, threads: int = 1) -> None:
        if any(layer.attention.sinks for layer in spec.layers):
            raise ValueError("attention sinks are not supported")
        self.spec = spec
        self._ops = ops
        pack = _Packer(source, ops)
        with ThreadPoolExecutor(threads) as pool:
            embed = pool.submit(pack.matrix, "embed")
            layers = [
                pool.submit(_Layer.load, layer, pack, i) for i, layer in enumerate(spec.layers)
            ]
            self._embed = embed.result()
            self._layers = [layer.result() for layer in layers]
        self._final_norm = pack.norm("final_norm", spec.final_norm)
        # Tied: the packed table serves both ways, and is held once.
        self._head = self._embed if spec.tied else pack.matrix("head", bias=spec.head_bias)
        self._step = ops.recorded(self._compute)

    def forward(self, batch: Batch, cache: Cache) -> Array:
        """Computes the batch, filling `cache`; returns the normed hidden states of the tokens whose
        logits are wanted: (logit_tokens, hidden)."""
        return self._step(batch, cache)

    def _compute(self, ops: Ops, batch: Batch, cache: Cache) -> Array:
        """The calls of one step: the same for every batch, so that they may be recorded."""
        x = ops.embed(batch, self._embed)
        if self.spec.embed_scale != 1.0:
            x = ops.scale(x, self.spec.embed_scale)
        residual = None
        for layer in self._layers:
            x, residual = layer.forward(x, residual, batch, cache, ops)
        x, residual = ops.logit_rows(x, batch), ops.logit_rows(residual, batch)
        hidden, _ = self._final_norm.apply(x, residual, ops)
        return hidden

    def logits(self, hidden: Array) -> Array:
        """(rows, hidden) -> (rows, vocab_used): padding rows of the head are cut off."""
        logits = self._ops.linear(hidden, self._head)[:, : self.spec.vocab_used]
        if self.spec.logit_scale != 1.0:
            logits = self._ops.scale(logits, self.spec.logit_scale)
        return logits


@dataclass(slots=True)
class _Norm:
    spec: NormSpec
    weight: Array
    bias: Array

    def apply(self, x: Array, residual: Array, ops: Ops) -> tuple[Array, Array]:
        return ops.norm(x, self.weight, self.spec, residual, self.bias)


@dataclass(slots=True)
class _Layer:
    spec: LayerSpec
    attn_norm: _Norm
    qkv: Weight
    o: Weight
    mlp_norm: _Norm
    up: Weight
    """Gate and up, fused, where the activation is gated."""
    down: Weight

    @classmethod
    def load(cls, spec: LayerSpec, pack: _Packer, index: int) -> _Layer:
        at = f"layers.{index}."
        gated = spec.activation.endswith("_gated")
        up = (at + "gate", at + "up") if gated else (at + "up",)
        return cls(
            spec=spec,
            attn_norm=pack.norm(at + "attn_norm", spec.attn_norm),
            qkv=pack.matrix(at + "q", at + "k", at + "v", bias=spec.qkv_bias),
            o=pack.matrix(at + "o", bias=spec.o_bias),
            mlp_norm=pack.norm(at + "mlp_norm", spec.mlp_norm),
            up=pack.matrix(*up, bias=spec.mlp_bias),
            down=pack.matrix(at + "down", bias=spec.mlp_bias),
        )

    def forward(
        self, x: Array, residual: Array, batch: Batch, cache: Cache, ops: Ops
    ) -> tuple[Array, Array]:
        """Returns the MLP's output and the residual that is still to be added to it."""
        attention = self.spec.attention
        q_end = attention.heads * attention.head_dim
        k_end = q_end + attention.kv_heads * attention.head_dim
        x, residual = self.attn_norm.apply(x, residual, ops)
        qkv = ops.linear(x, self.qkv)
        q, k, v = qkv[:, :q_end], qkv[:, q_end:k_end], qkv[:, k_end:]
        q = ops.rope_and_store(q, k, v, cache, batch, self.spec.rope, attention)
        x = ops.linear(ops.attention(q, cache, batch, attention), self.o)
        x, residual = self.mlp_norm.apply(x, residual, ops)
        x = ops.act(ops.linear(x, self.up), self.spec.activation)
        return ops.linear(x, self.down), residual


@dataclass(slots=True)
class _Packer:
    source: WeightSource
    ops: Ops

    def matrix(self, *names: str, bias: bool = False) -> Weight:
        """The named matrices, fused along their outputs."""
        biases = [self.source.get(f"{name}.bias") for name in names] if bias else []
        packed = self.ops.pack([self.source.get(name) for name in names], biases)
        for name in names:
            self.source.done(name)
        return packed

    def norm(self, name: str, spec: NormSpec) -> _Norm:
        bias = f"{name}.bias"
        return _Norm(
            spec,
            self.ops.vector(self.source.get(name)),
            self.ops.vector(self.source.get(bias)) if self.source.has(bias) else None,
        )
