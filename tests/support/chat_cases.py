"""The conversations that every chat template is rendered with, here and by transformers.

Plain data: the oracle's environment, which has neither octavo nor its dependencies, reads it too.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).resolve().parents[3] / "shared" / "data" / "chat_templates"
NOW = datetime(2026, 1, 2, 3, 4, 5)
NAMED_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
ARGUMENTS = {"city": "Zürich", "days": 2, "units": ["°C", "<km/h>"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city & its surroundings",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "days": {"type": "integer", "description": "How many days"},
                "units": {"type": "array", "items": {"type": "string"}, "description": "Units"},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "call12345",
    "type": "function",
    "function": {"name": "get_weather", "arguments": ARGUMENTS},
}
USER = {"role": "user", "content": "Hello, what's 1 < 2 & 3?"}
CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER], "add_generation_prompt": True},
    "system": {
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "add_generation_prompt": True,
    },
    "turns": {
        "messages": [
            USER,
            {"role": "assistant", "content": "  Yes.\nIt is. "},
            {"role": "user", "content": "Sure?\n"},
        ],
        "add_generation_prompt": False,
    },
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "Yes, because"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "The weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "Sun"},
        ],
        "tools": [TOOL],
        "add_generation_prompt": True,
    },
}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
