"""Servers for these tests: one over a scripted engine, made anew for each test that changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from octavo.server.serving import Serving
from octavo.text.chat import ChatTemplate
from octavo.text.tokenizer import Tokenizer
from support.fake_engine import FakeEngine
from support.live_server import LiveServer
from support.real_server import real_server
from support.tiny_models import TinyModel
from support.tiny_tokenizer import BOS, CHAT_TEMPLATE, EOS, VOCAB, TinyTokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(
        TinyTokenizer().build(), prefix_ids=(BOS,), bos_id=BOS, eos_ids=(EOS,),
        named_tokens={"bos_token": "<|bos|>"},
    )  # fmt: skip


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., LiveServer]]:
    """`serve(model, **options)`: the real engine behind a server, until the module ends."""
    with ExitStack() as stack:

        def begin(model: TinyModel, **options: Any) -> LiveServer:
            path = model.write(tmp_path_factory.mktemp("model"))
            return stack.enter_context(real_server(path, **options))

        yield begin


Start = Callable[..., LiveServer]


@pytest.fixture
def start(tokenizer: Tokenizer) -> Iterator[Start]:
    """Starts servers over fake engines; they end with the test."""
    with ExitStack() as stack:

        def begin(
            engine: FakeEngine, app: dict[str, Any] | None = None, **values: Any
        ) -> LiveServer:
            known: dict[str, Any] = {
                "tokenizer": tokenizer,
                "template": ChatTemplate(CHAT_TEMPLATE, {"bos_token": "<|bos|>"}),
                "names": ("tiny",),
                "max_model_len": 128,
                "vocab_size": VOCAB,
            }
            known.update(values)
            return stack.enter_context(
                LiveServer(lambda: Serving(engine=engine, **known), **(app or {}))
            )

        yield begin


@pytest.fixture
def server(start: Start, fake: FakeEngine) -> LiveServer:
    return start(fake)
