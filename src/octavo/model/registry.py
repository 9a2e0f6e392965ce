"""Opens models: what a path holds, whether it is supported, and its spec and weights.

Owns: the two ways in, `inspect` (facts, before anything is loaded) and `open_model`.
Does not know: how names become paths (fetch), file formats, arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from octavo.model import gguf_model, hf_model
from octavo.model.errors import ModelError
from octavo.model.families import FAMILIES, find_family, find_gguf_family
from octavo.model.families.family import Family, Plan
from octavo.model.families.fields import Fields
from octavo.model.generation import from_generation_config, from_gguf, token_ids, union
from octavo.model.gguf import Header, read_header, split_parts
from octavo.model.info import LOGIT_ROWS, ModelInfo
from octavo.model.kv_cache import kv_groups
from octavo.model.pickled import is_pickled, refuse
from octavo.model.quantized.modules import QuantizedModules
from octavo.model.quantized.settings import read_scheme
from octavo.model.rope_words import rope_words
from octavo.model.safetensors import load_json
from octavo.model.spec import DecoderSpec, WeightSource
from octavo.model.weights import expected_shapes, packs

Families = Sequence[Family]

FLOAT_BYTES = 4
"""Bytes of a weight, a cached value and an activation as the reference backend holds them."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """`spec` holds for sequences of at most the context it was opened for."""

    info: ModelInfo
    spec: DecoderSpec
    source: WeightSource


def inspect(path: str | Path, families: Families = FAMILIES) -> ModelInfo:
    """Facts about the model at `path` (a Hugging Face directory or a .gguf file).

    Reads headers and configuration only, and checks that the tensors are all there, whole and of
    the right shapes. Raises ModelError: the first line says what is wrong with which file.
    """
    return _look(Path(path), families).info()


def open_model(
    path: str | Path, context: int | None = None, families: Families = FAMILIES
) -> OpenedModel:
    """The model at `path`, its weights mapped and not read.

    `context` is the length, in tokens, that no sequence will exceed (None: the longest that the
    model is made for): rope that depends on the length is fixed by it. Raises ModelError as
    `inspect` does, and code "context_too_long".
    """
    found = _look(Path(path), families)
    longest = found.plan.max_position
    if context is not None and not 0 < context <= longest:
        raise ModelError(
            f"{path}: a context of {context} tokens is asked for; the model is made for {longest}",
            "context_too_long",
            f"Use --max-model-len {longest} or less.",
        )
    spec = found.plan.build(context or longest)
    return OpenedModel(found.info(), spec, found.open(spec))


def _look(path: Path, families: Families) -> _HfModel | _GgufModel:
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / "config.json").is_file():
            if len({split_parts(file)[0] for file in ggufs}) > 1:
                raise ModelError(
                    f"{path}: holds several GGUF models: {', '.join(f.name for f in ggufs[:6])}",
                    "ambiguous_model",
                    "Name one of the files.",
                )
            return _GgufModel(ggufs[0], families)
        return _HfModel(path, families)
    if path.is_file():
        if path.suffix == ".safetensors":
            raise ModelError(
                f"{path}: one file of a model, whose config.json and tokenizer are needed too",
                "missing_file",
                f"Give the directory: {path.parent}",
            )
        if path.suffix != ".gguf" and is_pickled(path):
            raise refuse(path, [path])
        return _GgufModel(path, families)
    raise ModelError(
        f"{path}: no such file or directory",
        "missing_file",
        "Give a Hugging Face model directory, a .gguf file, a built-in alias or a hub name.",
    )


class _HfModel:
    def __init__(self, directory: Path, families: Families) -> None:
        self.directory = directory
        own_code = {code for family in families for code in family.own_code}
        self.config = hf_model.read_config(directory, own_code)
        scheme = read_scheme(directory, self.config)
        self.origin = str(directory / "config.json")
        family = find_family(self.config, self.origin, families)
        if family.hf_text:
            self.config = family.hf_text.fields(self.config)
        # The shape of the embedding comes first: a wrong vocabulary is a clearer error than others.
        vocab = Fields(self.config, self.origin).size("vocab_size")
        values = {**self.config, "vocab_used": hf_model.vocabulary(directory, vocab)}
        self.plan = family.read(Fields(values, self.origin), ())
        self.family = family.named(self.plan)
        self.entries = hf_model.find_weights(directory, self.family)
        self.quantized = None if scheme is None else QuantizedModules(scheme, self.entries)

    def open(self, spec: DecoderSpec) -> WeightSource:
        return hf_model.open_weights(
            self.directory, spec, self.family, self.entries, self.quantized
        )

    def info(self) -> ModelInfo:
        spec = self.plan.build(self.plan.max_position)
        names = hf_model.check(self.directory, spec, self.family, self.entries, self.quantized)
        generation = self._generation()
        ends = [
            token_ids(self.config.get("eos_token_id"), "eos_token_id", self.origin),
            token_ids(generation.get("eos_token_id"), "eos_token_id", "generation_config.json"),
            token_ids(hf_model.special_token(self.directory, "eos_token"), "eos_token", ""),
        ]
        begins = token_ids(self.config.get("bos_token_id"), "bos_token_id", self.origin)
        bos = begins[0] if begins else hf_model.special_token(self.directory, "bos_token")
        return _info(
            self.directory,
            self.directory.resolve().name,
            self.family,
            self.plan,
            spec,
            packs=packs(spec, hf_model.formats(self.entries, names, self.quantized)),
            format="safetensors",
            quantization=hf_model.dtype(self.config, self.entries, self.quantized),
            bos_token_id=bos,
            eos_token_ids=union(ends, spec.vocab),
            generation=from_generation_config(generation, "generation_config.json"),
            tokenizer_files=hf_model.tokenizer_files(self.directory),
            file_bytes=_bytes_of({entry.path for entry in self.entries.values()}),
            rope=rope_words(self.config),
        )

    def _generation(self) -> dict[str, Any]:
        path = self.directory / "generation_config.json"
        return load_json(path) if path.is_file() else {}


class _GgufModel:
    def __init__(self, path: Path, families: Families) -> None:
        self.path = path
        self.header: Header = read_header(path)
        meta = self.header.metadata
        architecture = meta.get("general.architecture")
        routed = bool(meta.get(f"{architecture}.expert_count"))
        family = find_gguf_family(architecture, str(path), families, routed=routed)
        config = gguf_model.hf_config(self.header)
        divisors = gguf_model.rope_divisors(self.header)
        self.rope = rope_words(config, divisors)
        self.plan = family.read(Fields(config, str(path), gguf=True), divisors)
        self.family = family.named(self.plan)

    def open(self, spec: DecoderSpec) -> WeightSource:
        return gguf_model.open_weights(self.header, spec, self.family)

    def info(self) -> ModelInfo:
        meta = self.header.metadata
        spec = self.plan.build(self.plan.max_position)
        names = gguf_model.check(self.header, spec, self.family)
        bos = meta.get("tokenizer.ggml.bos_token_id")
        return _info(
            self.path,
            self.path.name.removesuffix(".gguf"),
            self.family,
            self.plan,
            spec,
            packs=packs(spec, gguf_model.formats(self.header, names)),
            format="gguf",
            quantization=gguf_model.quantization(self.header),
            bos_token_id=bos if isinstance(bos, int) else None,
            eos_token_ids=union([gguf_model.end_tokens(meta)], spec.vocab),
            generation=from_gguf(meta, str(self.path)),
            tokenizer_files=(str(self.path),) if meta.get("tokenizer.ggml.tokens") else (),
            file_bytes=_bytes_of({Path(entry.path) for entry in self.header.tensors.values()}),
            rope=self.rope,
        )


def _info(
    path: Path, name: str, family: Family, plan: Plan, spec: DecoderSpec, **facts: Any
) -> ModelInfo:
    attention = spec.layers[0].attention
    parameters = sum(prod(shape) for shape in expected_shapes(spec).values())
    q_width = attention.heads * attention.head_dim
    kv_width = attention.kv_heads * attention.head_dim
    # Of one token in one layer, alive at once: the residual, its sum and the normed input; q, k, v
    # and attention's output; what the MLP holds. Logits come a bounded number at a time.
    mlp = max(layer.mlp_values(spec.hidden) for layer in spec.layers)
    workspace = 3 * spec.hidden + 2 * (q_width + kv_width) + mlp
    return ModelInfo(
        path=str(path),
        name=name,
        architecture=family.architecture,
        parameters=parameters,
        vocab_size=spec.vocab,
        max_position=plan.max_position,
        layers=len(spec.layers),
        hidden_size=spec.hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        weight_bytes=FLOAT_BYTES * parameters,
        kv_bytes_per_token=FLOAT_BYTES * 2 * kv_width * len(spec.layers),
        kv_groups=kv_groups(spec),
        workspace_bytes_per_token=FLOAT_BYTES * workspace,
        workspace_bytes=FLOAT_BYTES * LOGIT_ROWS * spec.vocab,
        vocab_used=spec.vocab_used,
        tied=spec.tied,
        **facts,
    )


def _bytes_of(files: set[Path]) -> int:
    return sum(file.stat().st_size for file in files)
