"""Models with routed experts in files: experts apart or stacked, GGUF, sizes, what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from octavo.model.decoder import Decoder
from octavo.model.errors import ModelError
from octavo.model.families import find_gguf_family
from octavo.model.registry import inspect, open_model
from octavo.model.sizes import sized
from octavo.ops.native import native_available, native_reason
from octavo.ops.select import select_ops
from support import golden_families, golden_models, moe_files, run_decoder

NAMES = ("mixtral", "qwen2_moe_plain", "qwen3_moe")
needs_kernels = pytest.mark.skipif(not native_available(), reason=native_reason() or "no kernels")


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    path.mkdir()
    golden_models.write_config(path, dict(config))
    golden_models.save(path / "model.safetensors", dict(tensors))
    return path


def logits(path: Path, **options: Any) -> np.ndarray:
    decoder, ops = run_decoder.load(path, **options)
    return run_decoder.logits(decoder, ops, golden_families.token_ids("experts"), 16)


@pytest.mark.parametrize("name", NAMES)
def test_stacked_experts_are_the_same_model(name: str, tmp_path: Path) -> None:
    config, shapes = moe_files.sparse(name)
    tensors = golden_families.tensors(shapes)
    apart = write(tmp_path / "apart", config, tensors)
    stacked = write(tmp_path / "stacked", config, moe_files.stacked(tensors))
    assert inspect(stacked).parameters == inspect(apart).parameters
    assert logits(stacked).tobytes() == logits(apart).tobytes()


@needs_kernels
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float32"}])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_depend_on_the_company(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    """Sequences whose tokens crowd the same experts, each alone and all in one batch."""
    config, shapes = moe_files.sparse(name)
    path = write(tmp_path / "m", config, golden_families.tensors(shapes))
    decoder, ops = run_decoder.load(path, backend="cpu", threads=2, **options)
    ids = np.random.default_rng(0).integers(0, 97, 400).tolist()
    prompts = [ids[i * 9 : i * 9 + 3 + i] for i in range(12)]
    together = run_decoder.greedy(decoder, ops, prompts, 20)
    for i, prompt in enumerate(prompts):
        alone = run_decoder.greedy(decoder, ops, [prompt], 20)
        np.testing.assert_array_equal(alone[0], together[i])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [Type.F32, Type.F16])
def test_gguf_files_are_the_same_model(name: str, kind: Type, tmp_path: Path) -> None:
    config, shapes = moe_files.sparse(name)
    tensors = golden_families.tensors(shapes)
    expected = logits(write(tmp_path / "hf", config, tensors))
    path = moe_files.to_gguf(tmp_path / "m.gguf", config, tensors, kind)
    assert inspect(path).architecture == config["architectures"][0]
    worst = np.abs(logits(path) - expected).max() / np.abs(expected).max()
    assert worst < (1e-5 if kind == Type.F32 else 2e-2)


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0])
def test_each_expert_is_its_part_of_the_stack(kind: Type, tmp_path: Path) -> None:
    """Codes too, as the gguf package dequantises them."""
    config, shapes = moe_files.sparse("qwen2_moe_plain", moe_intermediate_size=64)
    config["shared_expert_intermediate_size"] = 32
    for name, shape in shapes.items():
        wide = 32 if "shared_expert." in name else 64
        if "down_proj" in name:
            shapes[name] = [shape[0], wide]
        elif "gate_proj" in name or "up_proj" in name:
            shapes[name] = [wide, shape[1]]
    tensors = golden_families.tensors(shapes)
    source = open_model(moe_files.to_gguf(tmp_path / "m.gguf", config, tensors, kind)).source
    for name, values in tensors.items():
        if ".mlp." not in name:
            continue
        part = name.removeprefix("model.").removesuffix(".weight").replace(".mlp.", ".")
        for old, new in (
            ("_proj", ""),
            ("shared_expert_gate", "shared_router"),
            ("shared_expert.", "shared."),
        ):
            part = part.replace(old, new)
        part = part if "experts." in part or "shared" in part else part.replace("gate", "router")
        raw = source.get(part)
        assert raw.shape == values.shape
        router = "router" in part
        if not router:
            values = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert raw.format == ("f32" if router else f"gguf:{kind.name}")
        np.testing.assert_array_equal(raw.dequantize(), values, err_msg=name)


@needs_kernels
@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"quantize": "int4"}])
@pytest.mark.parametrize("name", NAMES)
def test_the_planned_bytes_are_the_packed_ones(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    """The router counts as float32, whatever the others are packed as."""
    config, shapes = moe_files.sparse(name)
    path = write(tmp_path / "m", config, golden_families.tensors(shapes))
    opened, ops = open_model(path), select_ops("cpu", **options)
    held, pack, vector = [0], ops.pack, ops.vector

    def counted(make: Callable[..., Any], size: Callable[[Any], int]) -> Callable[..., Any]:
        def made(*arguments: Any, **more: Any) -> Any:
            result = make(*arguments, **more)
            held[0] += size(result)
            return result

        return made

    ops.pack = counted(pack, lambda w: w.nbytes if hasattr(w, "nbytes") else w.bytes)  # type: ignore[method-assign]
    ops.vector = counted(vector, lambda w: w.nbytes)  # type: ignore[method-assign]
    Decoder(opened.spec, opened.source, ops)
    planned = sized(inspect(path), backend="cpu", **options).weight_bytes
    # Codes are planned as the widest instruction set pads them.
    assert 0.6 * planned < held[0] <= planned if "quantize" in options else held[0] == planned


@needs_kernels
@pytest.mark.parametrize("name", NAMES)
def test_the_planned_activations_hold_those_of_a_step(name: str, tmp_path: Path) -> None:
    config, shapes = moe_files.sparse(name)
    path = write(tmp_path / "m", config, golden_families.tensors(shapes))
    decoder, _ = run_decoder.load(path, backend="cpu")
    rows = 256
    step: Any = decoder._step
    assert step.workspace_bytes(rows) <= rows * inspect(path).workspace_bytes_per_token


_PEAK = """
import re, sys
from octavo.model.decoder import Decoder
from octavo.model.registry import open_model
from octavo.ops.select import select_ops

def kilobytes(what):
    return int(re.search(what + r":\\s+(\\d+)", open("/proc/self/status").read())[1])

opened, ops = open_model(sys.argv[1]), select_ops("cpu", threads=2)
before = kilobytes("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
decoder = Decoder(opened.spec, opened.source, ops, threads=2)
print(kilobytes("VmHWM") - before)
"""


@needs_kernels
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize("layout", ["apart", "stacked"])
def test_loading_takes_little_more_than_the_packed_weights(layout: str, tmp_path: Path) -> None:
    """Some 80 MB of experts in bf16, packed on two threads."""
    config, shapes = moe_files.sparse("mixtral", hidden_size=512, intermediate_size=1024)
    config |= {"num_local_experts": 12, "num_experts_per_tok": 2, "num_attention_heads": 16}
    config["num_key_value_heads"] = 16
    del shapes, config["head_dim"]
    sizes = {"w1": (1024, 512), "w3": (1024, 512), "w2": (512, 1024)}
    tensors = {"model.embed_tokens.weight": (97, 512), "model.norm.weight": (512,)}
    for i in range(2):
        at = f"model.layers.{i}."
        tensors |= {f"{at}self_attn.{p}_proj.weight": (512, 512) for p in "qkvo"}
        tensors |= {f"{at}{n}_layernorm.weight": (512,) for n in ("input", "post_attention")}
        tensors[at + "block_sparse_moe.gate.weight"] = (12, 512)
        for expert in range(12):
            experts = f"{at}block_sparse_moe.experts.{expert}."
            tensors |= {f"{experts}{part}.weight": shape for part, shape in sizes.items()}
    values = {name: np.full(shape, 0.01, np.float16) for name, shape in tensors.items()}
    if layout == "stacked":
        values = moe_files.stacked(values)
    path = write(tmp_path / "m", config, values)
    packed = sized(inspect(path), backend="cpu").weight_bytes
    largest = max(array.nbytes for array in values.values())
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)], capture_output=True, text=True, check=True
    )
    peak = 1024 * int(done.stdout)
    assert 0.9 * packed < peak < 1.3 * packed + largest


def test_experts_tell_mixtral_from_llama() -> None:
    assert find_gguf_family("llama", "m", routed=True).architecture == "MixtralForCausalLM"
    assert find_gguf_family("llama", "m").architecture == "LlamaForCausalLM"
    assert find_gguf_family("qwen3moe", "m").architecture == "Qwen3MoeForCausalLM"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 6}, "num_experts_per_tok is 6, not at most the 5"),
        ("mixtral", {"num_local_experts": 4}, r"extra: .*block_sparse_moe\.experts\.4\."),
        ("mixtral", {"num_local_experts": 2000}, "num_local_experts is 2000"),
        ("qwen3_moe", {"num_experts": 0}, "num_experts is 0"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, r"missing: model\.layers\.0\.mlp\.gate_proj"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3, not a list of layers"),
        ("qwen3_moe", {"moe_intermediate_size": 41}, "misshapen"),
        ("qwen2_moe_plain", {"use_sliding_window": True}, "sliding windows are not supported"),
        ("qwen2_moe_plain", {"shared_expert_intermediate_size": None}, "is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config, shapes = moe_files.sparse(name)
    path = write(tmp_path / "m", {**config, **changes}, golden_families.tensors(shapes))
    with pytest.raises(ModelError, match=message):
        inspect(path)


def test_transformers_own_name_for_the_count_is_taken(tmp_path: Path) -> None:
    """transformers 5 writes num_local_experts for Qwen3-MoE; the released files say num_experts."""
    config, shapes = moe_files.sparse("qwen3_moe")
    config["num_local_experts"] = config.pop("num_experts")
    assert inspect(write(tmp_path / "m", config, golden_families.tensors(shapes))).parameters


def test_a_stack_of_another_shape_is_refused(tmp_path: Path) -> None:
    config, shapes = moe_files.sparse("mixtral")
    tensors = moe_files.stacked(golden_families.tensors(shapes))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = tensors[name][:, :-1].copy()
    with pytest.raises(ModelError, match=r"gate_up_proj \(5, 143, 64\) instead of \(5, 144, 64\)"):
        inspect(write(tmp_path / "m", config, tensors))
