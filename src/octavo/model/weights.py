"""Where tensors come from: the checked table of a checkpoint, by canonical name.

Owns: which tensors a spec needs and of which shapes; the one error that lists all that is wrong.
Does not know: file formats (safetensors, gguf_model) or packing (ops).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from octavo.model.errors import ModelError
from octavo.model.info import Pack
from octavo.model.spec import DecoderSpec
from octavo.ops import RawWeight

_LISTED = 12


class Checkpoint:
    """A WeightSource over mapped files. A tensor is made when it is asked for, and nothing of it is
    read until its `dequantize` or `data` is used."""

    def __init__(
        self, tensors: Mapping[str, Callable[[], RawWeight]], forget: Callable[[str], None]
    ) -> None:
        self._tensors = dict(tensors)
        self._forget = forget

    def get(self, name: str) -> RawWeight:
        return self._tensors[name]()

    def has(self, name: str) -> bool:
        return name in self._tensors

    def done(self, name: str) -> None:
        """Gives back the memory of the file's pages that `name` was read from."""
        self._forget(name)

    def close(self) -> None:
        """Forgets the tensors; the maps go when the last array over them does."""
        self._tensors.clear()


def expected_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor that `spec` needs."""
    hidden = spec.hidden
    shapes: dict[str, tuple[int, ...]] = {"embed": (spec.vocab, hidden), "final_norm": (hidden,)}
    if spec.final_norm.kind == "layer":
        shapes["final_norm.bias"] = (hidden,)
    if not spec.tied:
        shapes["head"] = (spec.vocab, hidden)
    if spec.head_bias:
        shapes["head.bias"] = (spec.vocab,)
    for i, layer in enumerate(spec.layers):
        at = f"layers.{i}."
        for name, norm in (("attn_norm", layer.attn_norm), ("mlp_norm", layer.mlp_norm)):
            shapes[at + name] = (hidden,)
            if norm.kind == "layer":
                shapes[f"{at}{name}.bias"] = (hidden,)
        attention, width = layer.attention, layer.intermediate
        q = attention.heads * attention.head_dim
        kv = attention.kv_heads * attention.head_dim
        gated = layer.activation.endswith("_gated")
        for name, outputs, inputs, bias in (
            ("q", q, hidden, layer.qkv_bias),
            ("k", kv, hidden, layer.qkv_bias),
            ("v", kv, hidden, layer.qkv_bias),
            ("o", hidden, q, layer.o_bias),
            *((("gate", width, hidden, layer.mlp_bias),) if gated else ()),
            ("up", width, hidden, layer.mlp_bias),
            ("down", hidden, width, layer.mlp_bias),
        ):
            shapes[at + name] = (outputs, inputs)
            if bias:
                shapes[f"{at}{name}.bias"] = (outputs,)
    return shapes


def packs(spec: DecoderSpec, formats: Mapping[str, str]) -> tuple[Pack, ...]:
    """The matrices of `spec` as the decoder packs them; `formats` by canonical name."""
    shapes = expected_shapes(spec)
    fused: list[tuple[str, ...]] = [("embed",)] if spec.tied else [("embed",), ("head",)]
    for i, layer in enumerate(spec.layers):
        gated = layer.activation.endswith("_gated")
        for names in (("q", "k", "v"), ("o",), ("gate", "up") if gated else ("up",), ("down",)):
            fused.append(tuple(f"layers.{i}.{name}" for name in names))
    counts = Counter(
        (
            tuple((formats[name], shapes[name][0]) for name in names),
            shapes[names[0]][1],
        )
        for names in fused
    )
    return tuple(Pack(*key, count) for key, count in counts.items())


def file_names(
    canonical: Iterable[str],
    names: Mapping[str, str],
    suffixes: tuple[str, str] = (".weight", ".bias"),
) -> dict[str, str]:
    """Canonical name -> name in the file, through a family's map of modules."""
    result = {}
    for name in canonical:
        module, bias = name.removesuffix(".bias"), name.endswith(".bias")
        layer = ""
        if module.startswith("layers."):
            _, layer, part = module.split(".")
            module = f"layers.{{i}}.{part}"
        result[name] = names[module].replace("{i}", layer) + suffixes[bias]
    return result


def check_tensors(
    origin: str,
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    hint: str = "",
) -> None:
    """Raise one ModelError (code "bad_tensors") naming every tensor that is missing, extra or
    misshapen. Both mappings go from the file's names to shapes."""
    missing = [f"{name} {wanted[name]}" for name in wanted if name not in found]
    extra = [f"{name} {found[name]}" for name in found if name not in wanted]
    misshapen = [
        f"{name} {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems = [
        f"{len(names)} {what}: {', '.join(names[:_LISTED])}{_more(names)}"
        for what, names in (("missing", missing), ("extra", extra), ("misshapen", misshapen))
        if names
    ]
    if problems:
        raise ModelError(
            f"{origin}: its tensors do not fit its configuration: {'; '.join(problems)}",
            "bad_tensors",
            hint or "Incomplete download, or a config that belongs to other weights?",
        )


def _more(names: list[str]) -> str:
    return f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
