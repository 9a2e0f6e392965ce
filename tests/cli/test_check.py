"""`octavo check` and `octavo models`: what they say, to people and to programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type

from octavo.model.families import FAMILIES
from octavo.model.formats import formats, holdings
from octavo.model.mapped import MappedFiles
from octavo.model.registry import inspect
from octavo.model.sizes import sized
from octavo.ops.native import native_installed
from support import golden_models
from support.gguf_files import convert
from support.tiny_models import write_tiny_random

KEYS = {
    "pools",
    *("supported", "fits", "runs", "error", "code", "hint", "memory_bytes", "memory_reason"),
    *("largest_context", "model", "backend", "weights", "kv", "text", "warnings", "max_model_len"),
    *("num_blocks", "kv_tokens", "budget_bytes", "ledger", "chats", "threads", "commands"),
    "family",
}
"""Of a model that runs. Scripts rely on them: take none away."""


@pytest.fixture(autouse=True)
def no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(MappedFiles, "view", read)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_random(tmp_path / "tiny", vocab=600, tied=True, max_position=4096)


def facts(octavo: Any, *words: str) -> tuple[dict[str, Any], int]:
    result = octavo("check", *words, "--json")
    return json.loads(result.out), result.code


def test_the_keys_of_a_model_that_runs(octavo, tiny) -> None:
    found, code = facts(octavo, str(tiny))
    assert code == 0 and set(found) == KEYS
    assert found["supported"] and found["fits"] and found["runs"]
    assert found["error"] is None and found["hint"] == []
    held = found["weights"]["held"]
    assert sum(row["bytes"] for row in held) == found["weights"]["packed_bytes"]
    assert sum(row["weights"] for row in held) == found["model"]["parameters"]
    assert found["weights"]["file_bytes"] == (tiny / "model.safetensors").stat().st_size
    assert found["text"]["template"] == "ok" and found["text"]["sample"].endswith("<|assistant|>")
    assert found["text"]["ends"] == [{"id": 511, "text": "<|eos|>"}]
    assert found["commands"] == [f"octavo serve {tiny}", f"octavo chat {tiny}"]
    assert (
        "88 of the 600 rows of the embedding have no token: padding, never sampled"
        in (found["warnings"])
    )
    assert "the embedding serves as the head too; it is held once" in found["warnings"]


def test_flags_that_were_given_stay_in_the_commands(octavo, tiny) -> None:
    words = ["--kv-tokens", "512", "--no-enable-prefix-caching", "--dtype", "float32"]
    found, _ = facts(octavo, str(tiny), *words)
    for command in found["commands"]:
        assert "--kv-tokens 512" in command and "--no-enable-prefix-caching" in command
        assert "--dtype float32" in command
    assert any("the context is 512 tokens" in line for line in found["warnings"])


def test_a_rope_that_is_scaled_is_told(octavo, tmp_path) -> None:
    path = golden_models.write_checkpoint(tmp_path / "m", "llama_tied_yarn_f16")
    found, code = facts(octavo, str(path))
    assert code == 1 and found["code"] == "missing_tokenizer"
    assert found["model"]["rope"] == "yarn, factor 4, from 32 positions"
    assert any(line.startswith("positions are scaled: yarn") for line in found["warnings"])
    assert found["supported"] and found["fits"] and not found["runs"]


def test_a_model_without_a_tokenizer_says_what_to_do(octavo, tiny) -> None:
    (tiny / "tokenizer.json").rename(tiny / "tokenizer.model")
    result = octavo("check", str(tiny))
    assert result.code == 1
    assert "supported, but will not run as asked" in result.out
    assert "AutoTokenizer" in result.err and "tokenizer.model" in result.err
    assert "octavo serve" not in result.out


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% if %}", "does not compile"),
        ("{{ raise_exception('no system') }}", "no system"),
        (None, "there is no chat template"),
    ],
)
def test_a_template_that_does_not_render_is_told(octavo, tiny, template, told) -> None:
    config = json.loads((tiny / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (tiny / "tokenizer_config.json").write_text(json.dumps(config))
    found, code = facts(octavo, str(tiny))
    assert code == 0 and found["runs"]
    assert any(told in line for line in found["warnings"]), found["warnings"]
    assert found["commands"][1].startswith("octavo run")


def test_a_broken_tokenizer_is_a_reason_not_to_run(octavo, tiny) -> None:
    (tiny / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    found, code = facts(octavo, str(tiny))
    assert code == 1 and found["code"] == "bad_tokenizer"
    assert "not a tokenizer that can be read" in found["error"]


def test_what_is_not_supported_as_json(octavo, tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "vocab_size": 9}')
    found, code = facts(octavo, str(tmp_path))
    assert code == 1
    assert found["supported"] is found["runs"] is False and found["fits"] is None
    assert found["code"] == "unsupported_architecture" and "BertModel" in found["error"]
    assert "LlamaForCausalLM" in found["hint"][0]
    assert found["warnings"] == []


def test_e03_a_truncated_shard_ends_with_a_code(octavo, tiny) -> None:
    file = tiny / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    result = octavo("check", str(tiny))
    assert result.code == 1
    assert "model.safetensors" in result.err and "should have" in result.err


@pytest.mark.parametrize("backend", ["cpu", "cuda", "reference"])
@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_what_is_held_adds_up_to_the_plan(backend: str, dtype: str, tmp_path: Path) -> None:
    """Fused matrices of several formats: codes beside codes, floats, both."""
    config = {**golden_models.CONFIGS["llama_tied_yarn_f16"], "tie_word_embeddings": False}
    config |= {"intermediate_size": 128}
    tensors = golden_models.tensors("llama_tied_yarn_f16")
    for name, value in list(tensors.items()):
        if "mlp" in name:
            rows, columns = (128 if size == 112 else size for size in value.shape)
            tensors[name] = golden_models.np.ones((rows, columns), "f4")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    types = {
        "blk.0.attn_q.weight": Type.Q4_0,
        "blk.0.attn_k.weight": Type.Q4_0,
        "blk.0.attn_v.weight": Type.Q8_0,
        "blk.1.attn_q.weight": Type.F16,
        "blk.1.attn_k.weight": Type.Q4_1,
        "blk.1.attn_v.weight": Type.Q4_1,
        "blk.2.ffn_gate.weight": Type.BF16,
        "blk.2.ffn_up.weight": Type.F32,
    }
    path = convert(tmp_path / "m.gguf", config, tensors, types=types, default=Type.F16)
    info = inspect(path)
    rows = holdings(info, backend, dtype)
    assert sum(row.bytes for row in rows) == (
        sized(info, backend=backend, dtype=dtype).weight_bytes
    )
    assert sum(row.weights for row in rows) == info.parameters
    if backend == "cpu" and dtype == "auto":
        by_source = {row.source: row for row in rows}
        assert by_source["gguf:Q4_1"].held == "codes of 4 bits, groups of 32"
        assert by_source["f16"].loses == "float16 weights are rounded to bfloat16"


def test_models_as_json(octavo) -> None:
    found = json.loads(octavo("models", "--json").out)
    assert [family["architecture"] for family in found["families"]] == [
        family.architecture for family in FAMILIES
    ]
    for family in found["families"]:
        assert family["summary"] and family["context"], family["architecture"]
        assert "safetensors:BF16" in family["formats"]
        assert ("gguf:Q4_K" in family["formats"]) == (family["gguf_architecture"] is not None)
    exact = {form["name"] for form in found["formats"] if form["exact"]}
    assert {"Q4_K", "Q8_0", "BF16", "F32"} <= exact and not {"F16", "Q2_K"} & exact


def test_models_for_people(octavo) -> None:
    result = octavo("models")
    assert result.code == 0
    for family in FAMILIES:
        assert family.architecture in result.out
    for form in formats():
        assert form.name in result.out


@pytest.mark.skipif(not native_installed(), reason="codes need the compiled kernels")
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_what_codes_cost_is_told(octavo, dtype: str, tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path / "tiny", hidden=64)
    words = ["--quantize", "int8"] if dtype == "auto" else ["--dtype", dtype]
    found, code = facts(octavo, str(path), *words)
    told = any("round activations to int8" in line for line in found["warnings"])
    assert code == 0 and told == (dtype == "auto")
