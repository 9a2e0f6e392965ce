"""The decoder: one loop over layers, driven by a `DecoderSpec` and written against the ops alone.

Owns: which op follows which, and the packing of what is not a layer's.
Does not know: numpy, torch, files, requests, sampling. Arrays are the backend's; it passes and
slices them.

    x = embed(ids)
    for each layer:  x = x + attention(norm(x));  x = x + mlp(norm(x))
    logits = head(norm(x))

The sum is kept in `residual` and done inside `norm`, so that a backend can fuse the two.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from octavo.model.layers import Layer, Packer
from octavo.model.spec import DecoderSpec, MatrixSpec, WeightSource
from octavo.ops import Array, Batch, Cache, Ops


class Decoder:
    """Packs all weights of `source` at construction, on `threads` threads; the source may be closed
    afterwards."""

    def __init__(self, spec: DecoderSpec, source: WeightSource, ops: Ops, threads: int = 1) -> None:
        if any(layer.attention.sinks for layer in spec.layers):
            raise ValueError("attention sinks are not supported")
        self.spec = spec
        self._ops = ops
        pack = Packer(source, ops, spec.hidden)
        table = MatrixSpec((("embed", spec.vocab),), spec.hidden)
        with ThreadPoolExecutor(threads) as pool:
            embed = pool.submit(pack.matrix, table)
            layers = [pool.submit(pack.layer, layer, i) for i, layer in enumerate(spec.layers)]
            self._embed = embed.result()
            self._layers: list[Layer] = [layer.result() for layer in layers]
        self._positions = None
        if spec.positions:
            places = MatrixSpec((("positions", spec.positions),), spec.hidden)
            self._positions = pack.matrix(places)
        self._final_norm = pack.norm("final_norm", spec.final_norm)
        # Tied: the packed table serves both ways, and is held once.
        self._head = self._embed
        if not spec.tied:
            head = MatrixSpec((("head", spec.vocab),), spec.hidden, spec.head_bias)
            self._head = pack.matrix(head)
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
        if self._positions is not None:
            places = ops.embed_positions(batch, self._positions, self.spec.position_offset)
            x = ops.add(x, places)
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
        if self.spec.logit_bound:
            logits = self._ops.bound(logits, self.spec.logit_bound, smooth=True)
        return logits
