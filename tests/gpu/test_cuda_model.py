"""Whole models on the torch backend: the decoder, executor and loader as they are for the CPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make oracle has it)")

from octavo.core.params import SamplingParams  # noqa: E402
from octavo.model.decoder import Decoder  # noqa: E402
from octavo.model.errors import ModelError  # noqa: E402
from octavo.model.kv_cache import cache_layout  # noqa: E402
from octavo.model.runner import load  # noqa: E402
from octavo.ops import NONFINITE_LOGITS, HostBatch  # noqa: E402
from octavo.ops.cuda import CudaOps  # noqa: E402
from octavo.ops.select import select_ops  # noqa: E402
from support.dense_model import dense_logits  # noqa: E402
from support.executor_driver import Driver  # noqa: E402
from support.tiny_models import TinyModel, chain, tiny_random, write_tiny_random  # noqa: E402
from support.tiny_tokenizer import USER  # noqa: E402

CUDA = torch.cuda.is_available()
TRITON = find_spec("triton") is not None and (CUDA or os.environ.get("TRITON_INTERPRET") == "1")
KINDS = [
    False,
    pytest.param(
        True, marks=pytest.mark.skipif(not TRITON, reason="no Triton, or no GPU to run it on")
    ),
]
BLOCK = 4


def logits(model: TinyModel, ops: CudaOps, ids: list[int], chunks: list[int]) -> np.ndarray:
    """All logits, computed in `chunks` over a scattered block table."""
    decoder = Decoder(model.spec, model.source(), ops)
    cache = ops.allocate_cache(cache_layout(model.spec, BLOCK), [64])
    table = [int(i) for i in np.random.default_rng(1).permutation(64)]
    parts, start = [], 0
    for count in chunks:
        batch = HostBatch(BLOCK, ids[start : start + count], list(range(start, start + count)))
        batch.row_of, batch.row_starts = [0] * count, [0, count]
        batch.tables, batch.write_from = [[table[: -(-(start + count) // BLOCK)]]], [start]
        batch.logit_tokens = list(range(count))
        parts.append(decoder.logits(decoder.forward(ops.upload(batch), cache)).cpu().numpy())
        start += count
    assert start == len(ids)
    return np.concatenate(parts)


@pytest.mark.parametrize("triton", KINDS, ids=lambda kind: "triton" if kind else "torch")
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_match_a_dense_float64_model_whole_and_in_chunks(
    family: str, tied: bool, triton: bool
) -> None:
    model = tiny_random(family, seed=5, layers=3, tied=tied)
    ids = [int(i) for i in np.random.default_rng(2).integers(0, 512, 37)]
    expected = dense_logits(model, ids)
    for chunks in ([37], [5, 1, 16, 2, 13]):
        got = logits(model, CudaOps(triton=triton), ids, chunks)
        assert np.abs(got - expected).max() < 1e-4


def test_a_crowd_in_chunks_with_a_fork_says_what_the_reference_says() -> None:
    """Peaked logits, so that float32's last bits choose no token."""
    model = tiny_random(seed=3, peaked=True)
    drawn = SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.2)
    answers = []
    for ops in (CudaOps(triton=False), select_ops("reference")):
        driver = Driver(model, ops=ops, seed=7)
        rng = np.random.default_rng(4)
        prompts = [[int(i) for i in rng.integers(0, 512, n)] for n in (1, 9, 30, 17)]
        seqs = [driver.add(p, drawn, seed=i) for i, p in enumerate(prompts)]
        seqs += [driver.add(p) for p in prompts]
        driver.step([(seqs[2], 29)])  # all but the last token, in a block that is partly filled
        seqs.append(driver.fork(seqs[2], 1, drawn))
        answers.append(driver.run(seqs, 10, 0))
    assert answers[0] == answers[1]


def test_a_chain_is_walked_and_nans_fail_their_row_alone() -> None:
    model = chain(["ABC", "DEF", "G", "HI", "J", "KLM"])
    driver = Driver(model, ops=select_ops("cuda"))
    assert driver.run([driver.add([USER])], 7) == [model.script]
    model = tiny_random(seed=2)
    model.tensors["embed"][9] = np.nan
    driver, twin = Driver(model, ops=select_ops("cuda")), Driver(model, ops=select_ops("cuda"))
    bad, good, alone = driver.add([1, 9, 3]), driver.add([1, 2, 3]), twin.add([1, 2, 3])
    driver.run([bad, good], 6)
    twin.run([alone], 6)
    assert bad.error == NONFINITE_LOGITS and good.output == alone.output
    driver.end(bad)
    heir = driver.add([1, 2, 3])  # in the blocks that hold the NaNs
    heir.table = list(bad.table)
    assert driver.run([heir], 4) == [alone.output[:4]]


def config(path: Path, **fields: object) -> SimpleNamespace:
    values = {
        "model": str(path),
        "max_model_len": 256,
        "pools": (),
        "num_blocks": 32,
        "block_size": BLOCK,
        "dtype": "auto",
        "quantize": "none",
        "kv_cache_dtype": "auto",
        "backend": "cuda",
        "threads": 2,
        "row_at_a_time": False,
    }
    return SimpleNamespace(**{**values, **fields})


def test_the_loader_takes_the_backend_and_warms_it_up(tmp_path: Path) -> None:
    path = write_tiny_random(tmp_path, "qwen2")
    loaded = load(config(path))
    loaded.executor.warm_up()
    assert loaded.notes["backend"] == "cuda"
    assert loaded.notes["numerics"].startswith("cuda:1 torch:")
    assert loaded.fingerprint != load(config(path, backend="reference")).fingerprint
    with pytest.raises(ModelError, match="row by itself") as caught:
        load(config(path, row_at_a_time=True))
    assert caught.value.code == "backend_missing" and "--row-at-a-time" in caught.value.hint
