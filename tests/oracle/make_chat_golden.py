"""Renders the shared chat templates with transformers and keeps digests of the results.

Run in the oracle's environment (transformers): `python tests/oracle/make_chat_golden.py` writes
tests/golden/chat_templates.json; with `--check` it compares instead, and exits 1 on a difference.
A rendering is kept as a digest, since the templates' texts belong to their makers; a refusal as
"error: " and the message.
"""

from __future__ import annotations

import copy
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from transformers.utils import chat_template_utils  # noqa: E402

from support.chat_cases import CASES, NAMED_TOKENS, NOW, TEMPLATES, digest  # noqa: E402

GOLDEN = TESTS / "golden" / "chat_templates.json"


class FixedDatetime(datetime):
    """The date that templates see."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def render(source: str, case: dict[str, Any]) -> str:
    case = copy.deepcopy(case)
    messages = case.pop("messages")
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=source, **case, **NAMED_TOKENS
        )
    except Exception as error:
        return f"error: {error}".splitlines()[0]
    return digest(rendered[0])


def main() -> int:
    chat_template_utils.datetime = FixedDatetime
    if not TEMPLATES.is_dir():
        print(f"{TEMPLATES} is missing: nothing to do")
        return 0
    made = {
        file.stem: {
            name: render(file.read_text(encoding="utf-8"), case) for name, case in CASES.items()
        }
        for file in sorted(TEMPLATES.glob("*.jinja"))
    }
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        same = GOLDEN.read_text(encoding="utf-8") == text
        print(f"{GOLDEN.name}: {'equal' if same else 'DIFFERENT'}")
        return 0 if same else 1
    GOLDEN.write_text(text, encoding="utf-8")
    print(f"{len(made)} templates, {len(CASES)} cases each -> {GOLDEN}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
