"""Windows of a text, perplexity against one's own arithmetic, and a file's weights as bfloat16."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from octavo.bench.bfloat import write_bfloat
from octavo.bench.perplexity import measure, options_for, windows
from octavo.model.gguf import read_header
from octavo.offline.llm_engine import LLMEngine
from support.dense_model import dense_logits, log_softmax
from support.gguf_files import convert
from support.golden_models import CONFIGS, tensors
from support.tiny_models import tiny_random


def test_windows_score_as_many_tokens_as_asked() -> None:
    ids = list(range(100))
    assert list(windows(ids, 4, 5)) == [[0, 1, 2, 3], [4, 5, 6]]
    assert list(windows(ids, 4, 6)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [len(piece) for piece in windows(ids, 48, 1000)] == [48, 48, 4]
    assert list(windows([1], 4, 5)) == []
    assert list(windows(ids[:5], 4, 5)) == [[0, 1, 2, 3]]
    assert list(windows(ids[:8], 4, 9, [0])) == [[0, 1, 2, 3], [0, 4, 5, 6], [0, 7]]
    assert list(windows(ids, 4, 5, [0])) == [[0, 1, 2, 3], [0, 4, 5]]


def test_perplexity_is_that_of_the_models_own_logits(tmp_path: Path) -> None:
    model = tiny_random("llama", 3)
    engine = LLMEngine(
        str(model.write(tmp_path / "m")), backend="reference", row_at_a_time=True, **options_for(16)
    )
    text = "Perplexity of a text is the exponential of its mean surprise. " * 3
    ids = engine.tokenizer.encode(text)
    found = measure(engine, ids, 40, 16)
    logprobs: list[float] = []
    for piece in windows(ids, 16, 40):
        rows = log_softmax(dense_logits(model, piece))
        logprobs += [float(rows[i, token]) for i, token in enumerate(piece[1:])]
    assert found.tokens == len(logprobs) == 40
    assert found.value == pytest.approx(np.exp(-np.mean(logprobs)), rel=1e-5)
    with pytest.raises(ValueError, match="too short"):
        measure(engine, [1], 40, 16)


def test_a_files_matrices_become_bfloat16(tmp_path: Path) -> None:
    config, held = CONFIGS["qwen2_bf16"], tensors("qwen2_bf16")
    kind = gguf.GGMLQuantizationType.F16
    source = convert(tmp_path / "a.gguf", config, held, default=kind, tokens=8)
    write_bfloat(str(source), tmp_path / "b.gguf")
    before, after = read_header(source), read_header(tmp_path / "b.gguf")
    assert before.metadata == after.metadata
    for name, entry in after.tensors.items():
        assert entry.shape == before.tensors[name].shape
        assert entry.type == ("BF16" if len(entry.shape) > 1 else "F32")
    assert len(after.tensors) == len(held)
