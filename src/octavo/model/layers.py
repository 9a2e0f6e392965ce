"""One layer of the decoder, and the packing of its weights.

Owns: what happens within a layer: attention and MLP, one after the other or side by side.
Does not know: numpy, torch, files, batches' contents.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.model.spec import LayerSpec, MatrixSpec, WeightSource
from octavo.ops import Array, Batch, Cache, Experts, NormSpec, Ops, Weight


@dataclass(slots=True)
class Norm:
    spec: NormSpec
    weight: Array
    bias: Array

    def apply(self, x: Array, residual: Array, ops: Ops) -> tuple[Array, Array]:
        return ops.norm(x, self.weight, self.spec, residual, self.bias)

    def of(self, x: Array, ops: Ops) -> Array:
        return ops.norm(x, self.weight, self.spec, None, self.bias)[0]


@dataclass(slots=True)
class Layer:
    """`matrices` and `norms` by the names that `LayerSpec` has for them; `experts` are bundled, if
    it has any."""

    spec: LayerSpec
    matrices: dict[str, Weight]
    norms: dict[str, Norm]
    experts: Experts = None

    def forward(
        self, x: Array, residual: Array, batch: Batch, cache: Cache, ops: Ops
    ) -> tuple[Array, Array]:
        """Returns the layer's last sum as its two terms: what is still to be added, and to what."""
        normed, residual = self.norms["attn_norm"].apply(x, residual, ops)
        attended = self._post("post_attn_norm", self._attend(normed, batch, cache, ops), ops)
        if self.spec.parallel:
            if "mlp_norm" in self.norms:
                normed = self.norms["mlp_norm"].of(residual, ops)
            return ops.add(self._mlp(normed, ops), attended), residual
        normed, residual = self.norms["mlp_norm"].apply(attended, residual, ops)
        return self._post("post_mlp_norm", self._mlp(normed, ops), ops), residual

    def _attend(self, x: Array, batch: Batch, cache: Cache, ops: Ops) -> Array:
        spec, attention = self.spec, self.spec.attention
        q_end = attention.heads * attention.head_dim
        k_end = q_end + attention.kv_heads * attention.head_dim
        qkv = ops.linear(x, self.matrices["qkv"])
        if spec.qkv_bound:
            qkv = ops.bound(qkv, spec.qkv_bound)
        q, k, v = qkv[:, :q_end], qkv[:, q_end:k_end], qkv[:, k_end:]
        q, k = self._post("q_norm", q, ops), self._post("k_norm", k, ops)
        q = ops.rope_and_store(q, k, v, cache, batch, spec.rope, attention)
        return ops.linear(ops.attention(q, cache, batch, attention), self.matrices["o"])

    def _mlp(self, x: Array, ops: Ops) -> Array:
        if self.spec.experts is not None:
            return ops.experts(x, ops.linear(x, self.matrices["router"]), self.experts)
        wide = ops.act(ops.linear(x, self.matrices["up"]), self.spec.activation)
        return ops.linear(wide, self.matrices["down"])

    def _post(self, name: str, x: Array, ops: Ops) -> Array:
        """`x` normed, where the layer has that norm."""
        norm = self.norms.get(name)
        return x if norm is None else norm.of(x, ops)


@dataclass(slots=True)
class Packer:
    source: WeightSource
    ops: Ops
    hidden: int

    def layer(self, spec: LayerSpec, index: int) -> Layer:
        at = f"layers.{index}."
        matrices = {
            name: self.matrix(matrix, at) for name, matrix in spec.matrices(self.hidden).items()
        }
        norms = {
            name: self.norm(at + name, norm) for name, (norm, _) in spec.norms(self.hidden).items()
        }
        return Layer(spec, matrices, norms, self._bundle(spec, matrices))

    def _bundle(self, spec: LayerSpec, matrices: dict[str, Weight]) -> Experts:
        if spec.experts is None:
            return None
        names = [name for name, _ in spec.experts.names()]
        experts = [(matrices[f"{name}.up"], matrices[f"{name}.down"]) for name in names]
        return self.ops.bundle(experts, spec.activation, spec.experts.routing)

    def matrix(self, spec: MatrixSpec, at: str = "") -> Weight:
        """The matrices of `spec`, fused along their outputs."""
        names = [at + name for name, _ in spec.parts]
        biases = [self.source.get(f"{name}.bias") for name in names] if spec.bias else []
        weights = [self.source.get(name) for name in names]
        packed = self.ops.pack(weights, biases, exact=spec.exact)
        for name in names:
            self.source.done(name)
        return packed

    def norm(self, name: str, spec: NormSpec) -> Norm:
        bias = self.ops.vector(self.source.get(f"{name}.bias")) if spec.bias else None
        return Norm(spec, self.ops.vector(self.source.get(name)), bias)
