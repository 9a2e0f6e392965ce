"""Fixtures of the text side's tests."""

from __future__ import annotations

import pytest

from octavo.text.tokenizer import Tokenizer
from support.text_tokenizers import byte_level, sentencepiece


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def spm_tokenizer() -> Tokenizer:
    return sentencepiece()
