"""Every shared chat template renders what transformers renders, or fails with the same words."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.text.chat import ChatTemplate
from octavo.text.errors import ChatError
from support.chat_cases import CASES, NAMED_TOKENS, NOW, TEMPLATES, digest

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "chat_templates.json"
KNOWN: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text(encoding="utf-8"))


def openai_form(case: dict[str, Any]) -> dict[str, Any]:
    """As a client sends it: a call's arguments are JSON in a string."""
    case = copy.deepcopy(case)
    for message in case["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return case


@pytest.mark.parametrize("name", KNOWN)
def test_renders_as_transformers_does(name: str) -> None:
    file = TEMPLATES / f"{name}.jinja"
    if not file.is_file():
        pytest.skip(f"{file} is missing: the shared data is not here")
    source = file.read_text(encoding="utf-8")
    template = ChatTemplate(source, NAMED_TOKENS, now=lambda: NOW)
    for case, arguments in CASES.items():
        expected = KNOWN[name][case]
        if expected.startswith("error: "):
            with pytest.raises(ChatError) as caught:
                template.render(**openai_form(arguments))
            assert expected.removeprefix("error: ") in str(caught.value)
        else:
            assert digest(template.render(**openai_form(arguments))) == expected, case
