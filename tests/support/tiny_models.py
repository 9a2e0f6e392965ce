"""Small models made in the tests: TINY-RANDOM, CHAIN and LOOP, in memory or as a directory.

Owns: their weights, specs and files.
Does not know: loaders, ops, servers. `support.tiny_tokenizer` makes the vocabulary.

- TINY-RANDOM (`tiny_random`, `write_tiny_random`): seeded weights in which a dropped field shows
  (norm weights away from 1, biases away from 0, rope_theta away from 10000). `peaked=True` scales
  the head so that the two best logits are apart.
- CHAIN (`chain`, `write_chain`): greedy decoding walks a scripted chain of tokens, whatever the
  context. It ignores the KV cache, so it proves nothing about caching.
- LOOP (`loop`, `write_loop`): repeats the last prompt token for ever.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from octavo.model.info import ModelInfo
from octavo.model.spec import DecoderSpec, LayerSpec
from octavo.ops import AttentionSpec, NormSpec, RawWeight, RopeSpec
from support.tiny_tokenizer import BOS, EOS, VOCAB, TinyTokenizer

Tensors = dict[str, np.ndarray]


class MemorySource:
    """A WeightSource over arrays in memory, by canonical name."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def get(self, name: str) -> RawWeight:
        array = self._tensors[name]
        return RawWeight(name, array.shape, "f32", array, lambda: array)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def done(self, name: str) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class TinyModel:
    """`tensors` by canonical name; `config` as it stands in config.json."""

    spec: DecoderSpec
    tensors: Tensors
    config: dict[str, Any]
    tokenizer: TinyTokenizer
    script: list[int] = field(default_factory=list)
    """CHAIN only: the ids that greedy decoding walks, EOS last."""

    def source(self) -> MemorySource:
        return MemorySource(self.tensors)

    def info(self) -> ModelInfo:
        spec, attention = self.spec, self.spec.layers[0].attention
        elements = sum(t.size for t in self.tensors.values())
        kv_width = attention.kv_heads * attention.head_dim
        return ModelInfo(
            path="",
            name="tiny",
            architecture=self.config["architectures"][0],
            format="safetensors",
            quantization="none",
            parameters=elements,
            vocab_size=spec.vocab,
            max_position=self.config["max_position_embeddings"],
            layers=len(spec.layers),
            hidden_size=spec.hidden,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            weight_bytes=4 * elements,
            kv_bytes_per_token=4 * 2 * len(spec.layers) * kv_width,
            workspace_bytes_per_token=4 * 8 * spec.hidden,
            workspace_bytes=4 * 64 * spec.vocab,
            bos_token_id=self.config.get("bos_token_id"),
            eos_token_ids=(EOS,),
        )

    def write(self, directory: Path | str) -> Path:
        """As a Hugging Face directory: config, generation_config, weights, tokenizer."""
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        generation = {"eos_token_id": EOS, "do_sample": False}
        (path / "config.json").write_text(json.dumps(self.config, indent=1))
        (path / "generation_config.json").write_text(json.dumps(generation))
        tensors = {_hf_name(name): np.ascontiguousarray(t) for name, t in self.tensors.items()}
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        self.tokenizer.write(path, bos="bos_token_id" in self.config)
        return path


def tiny_random(
    family: str = "llama",
    seed: int = 0,
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = VOCAB,
    peaked: bool = False,
    tied: bool = False,
    bos: bool = True,
    max_position: int = 2048,
) -> TinyModel:
    """A seeded model of `family` "llama" or "qwen2" (the latter with q, k, v biases).

    Rows of `vocab` beyond the tokenizer's 512 are padding.
    """
    shape = _Shape(family, layers, hidden, heads, kv_heads, 2 * hidden, vocab, tied)
    rng = np.random.default_rng([seed, layers, hidden])
    tensors: Tensors = {}
    for name, size in _shapes(shape).items():
        if name.endswith("norm"):
            values = rng.uniform(0.5, 1.5, size)
        elif name.endswith(".bias"):
            values = rng.normal(0.0, 0.5, size)
        elif name == "embed":
            values = rng.normal(0.0, 1.0, size)
        else:
            values = rng.normal(0.0, 1.5 / np.sqrt(size[1]), size)
        tensors[name] = values.astype(np.float32)
    if peaked:
        tensors["embed" if tied else "head"] *= np.float32(60.0)
    return TinyModel(_spec(shape), tensors, _config(shape, max_position, bos), TinyTokenizer())


def chain(
    script: str | Sequence[str | bytes | int], *, bos: bool = True, max_position: int = 2048
) -> TinyModel:
    """Greedy decoding yields `script`, then EOS.

    A text is cut into single bytes (longer pieces where a byte would come twice); a list gives the
    pieces themselves, or token ids. A piece may come once. Any token outside the script, so
    also a prompt's end or the chat template's, is followed by the first piece; a prompt that ends
    in a piece of the script goes on from there.
    """
    tokenizer, ids = TinyTokenizer.with_script(script)
    shape = _Shape("llama", 1, VOCAB, 4, 2, 16, VOCAB, False)
    tensors = _inert(shape)
    successor = np.full(VOCAB, ids[0])
    for here, following in zip(ids, [*ids[1:], EOS], strict=True):
        successor[here] = following
    head = np.zeros((VOCAB, VOCAB), np.float32)
    head[successor, np.arange(VOCAB)] = 8.0
    tensors["head"] = head
    config = _config(shape, max_position, bos)
    return TinyModel(_spec(shape), tensors, config, tokenizer, [*ids, EOS])


def loop(*, max_position: int = 4096) -> TinyModel:
    """Repeats the last token of the prompt until something stops it."""
    shape = _Shape("llama", 1, VOCAB, 4, 2, 16, VOCAB, True)
    config = _config(shape, max_position, bos=True)
    return TinyModel(_spec(shape), _inert(shape), config, TinyTokenizer())


def write_tiny_random(
    directory: Path | str, family: str = "llama", seed: int = 0, **options: Any
) -> Path:
    return tiny_random(family, seed, **options).write(directory)


def write_chain(
    directory: Path | str, script: str | Sequence[str | bytes | int], **options: Any
) -> Path:
    return chain(script, **options).write(directory)


def write_loop(directory: Path | str, **options: Any) -> Path:
    return loop(**options).write(directory)


@dataclass(frozen=True)
class _Shape:
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    tied: bool
    theta: float = 50_000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def _shapes(shape: _Shape) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape, in a fixed order (the random stream depends on it)."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (shape.vocab, shape.hidden)}
    for i in range(shape.layers):
        at = f"layers.{i}."
        shapes[at + "attn_norm"] = (shape.hidden,)
        shapes[at + "mlp_norm"] = (shape.hidden,)
        for name, outputs in (("q", q), ("k", kv), ("v", kv)):
            shapes[at + name] = (outputs, shape.hidden)
            if shape.family == "qwen2":
                shapes[f"{at}{name}.bias"] = (outputs,)
        shapes[at + "o"] = (shape.hidden, q)
        shapes[at + "gate"] = (shape.intermediate, shape.hidden)
        shapes[at + "up"] = (shape.intermediate, shape.hidden)
        shapes[at + "down"] = (shape.hidden, shape.intermediate)
    shapes["final_norm"] = (shape.hidden,)
    if not shape.tied:
        shapes["head"] = (shape.vocab, shape.hidden)
    return shapes


def _inert(shape: _Shape) -> Tensors:
    """Weights with which a layer adds nothing and the hidden state is the token's unit vector."""
    rng = np.random.default_rng(0)
    tensors: Tensors = {}
    for name, size in _shapes(shape).items():
        if name.endswith("norm"):
            tensors[name] = np.ones(size, np.float32)
        elif name.endswith((".o", ".down")):
            tensors[name] = np.zeros(size, np.float32)
        elif name == "embed":
            tensors[name] = np.eye(size[0], size[1], dtype=np.float32)
        else:
            tensors[name] = rng.normal(0.0, 0.02, size).astype(np.float32)
    return tensors


def _spec(shape: _Shape) -> DecoderSpec:
    half = np.arange(0, shape.head_dim, 2, dtype=np.float32) / np.float32(shape.head_dim)
    frequencies = 1.0 / (np.float32(shape.theta) ** half)
    rope = RopeSpec(tuple(float(f) for f in frequencies))
    norm = NormSpec("rms", shape.eps)
    layers = tuple(
        LayerSpec(
            attention=AttentionSpec(
                layer=i,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                scale=shape.head_dim**-0.5,
            ),
            rope=rope,
            attn_norm=norm,
            mlp_norm=norm,
            intermediate=shape.intermediate,
            activation="silu_gated",
            qkv_bias=shape.family == "qwen2",
        )
        for i in range(shape.layers)
    )
    return DecoderSpec(
        vocab=shape.vocab,
        vocab_used=VOCAB,
        hidden=shape.hidden,
        layers=layers,
        final_norm=norm,
        tied=shape.tied,
    )


def _config(shape: _Shape, max_position: int, bos: bool) -> dict[str, Any]:
    architecture = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[shape.family]
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": shape.family,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": max_position,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "float32",
        "eos_token_id": EOS,
    }
    if bos:
        config["bos_token_id"] = BOS
    return config


def _hf_name(name: str) -> str:
    """Canonical name -> the name in a LLaMA or Qwen2 checkpoint."""
    whole = {
        "embed": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, part, *bias = name.split(".")
    module = {
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{p: f"self_attn.{p}_proj" for p in "qkvo"},
        **{p: f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    }[part]
    return f"model.layers.{layer}.{module}.{'bias' if bias else 'weight'}"
