"""How a GGUF file's byte-level BPE splits text into words before merging, by the name it gives.

Owns: the table from `tokenizer.ggml.pre` to regular expressions and flags.
Does not know: vocabularies (gguf_tokenizer).

The expressions are those of the models' own tokenizer.json files; the names are llama.cpp's
(src/llama-vocab.cpp). `tokenizers` runs them in Oniguruma, which has the Unicode classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from octavo.text.errors import TokenizerError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_QWEN35 = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}|{_CASED_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_KANA_AND_HAN = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_SEED = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`steps`: each splits every part that the one before it left. `whole_words`: a word that is in
    the vocabulary is taken as it is, without merging. `nfc`: text is composed first."""

    steps: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False
    nfc: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer of the `tokenizers` library, ending in the byte-level alphabet."""
        splits = [
            pre_tokenizers.Split(tokenizers.Regex(step), behavior="isolated") for step in self.steps
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2_LIKE = PreTokenizer((_GPT2,))
_DIGITS_APART = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_LIKE = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_LIKE = PreTokenizer((_QWEN2,), nfc=True)
_GPT4O_LIKE = PreTokenizer((_GPT4O,))
_DEEPSEEK3_LIKE = PreTokenizer((r"\p{N}{1,3}", _KANA_AND_HAN, _DEEPSEEK3))

_TABLE: dict[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4"), _GPT2_LIKE),
    **dict.fromkeys(("olmo", "jais", "trillion", "granite-docling"), _GPT2_LIKE),
    **dict.fromkeys(("mpt", "gpt-neox"), PreTokenizer((_GPT2,), nfc=True)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone"), _DIGITS_APART),
    **dict.fromkeys(("minerva-7b", "mellum2"), _DIGITS_APART),
    "command-r": PreTokenizer((r"\p{N}", _GPT2), nfc=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"), _LLAMA3_LIKE),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA3_LIKE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo"), _QWEN2_LIKE),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), PreTokenizer((_QWEN2,))),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_LIKE),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _DEEPSEEK3_LIKE),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((_BAILING,))),
    "seed-coder": PreTokenizer((_SEED,)),
}

_BY_ARCHITECTURE = {"gptneox": "gpt-neox", "gpt2": "gpt-2", "falcon": "falcon", "mpt": "mpt"}
"""What old files, written before the name was stored, can only have meant."""


def pre_tokenizer(name: str | None, architecture: str) -> PreTokenizer:
    """The pre-tokenizer called `name`. Raises TokenizerError for one that is not known, or for a
    file that names none where the architecture leaves it open: a wrong guess would quietly make
    the model worse."""
    if not name or name == "default":
        guess = _BY_ARCHITECTURE.get(architecture)
        if guess is None:
            raise TokenizerError(
                "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre is "
                f"{name!r}) and the architecture {architecture!r} leaves it open; convert the "
                "model again with a current converter, or give a tokenizer.json"
            )
        name = guess
    if name not in _TABLE:
        raise TokenizerError(
            f"the GGUF file's pre-tokenizer {name!r} is not supported; supported are: "
            f"{', '.join(sorted(_TABLE))}. A directory with tokenizer.json works instead"
        )
    return _TABLE[name]
