"""Chat templates: messages in every shape, refusals, continuing, variables."""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any

import pytest

from octavo.text.chat import ChatTemplate
from octavo.text.errors import ChatError
from support.text_tokenizers import byte_level

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for p in m['content'] %}[{{ p.text }}]{% endfor %}"
    "{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% set content = m.content %}{% if content is string %}{{ content }}"
    "{% else %}{% for p in content %}[{{ p['text'] }}]{% endfor %}{% endif %}{% endfor %}"
)
TWO_PARTS = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def render(source: str, messages: list[Any], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


class TestContent:
    """Case A16."""

    def test_a16_parts_are_joined_by_a_newline_for_a_string_template(self) -> None:
        messages = [{"role": "system", "content": TWO_PARTS}, user(TWO_PARTS)]
        assert render(CHATML, messages, add_generation_prompt=False) == (
            "<|im_start|>system\nA\nB<|im_end|>\n<|im_start|>user\nA\nB<|im_end|>\n"
        )

    def test_a16_a_template_that_takes_parts_gets_them(self) -> None:
        assert render(PARTS, [user(TWO_PARTS), user("C")]) == "<user>[A][B]<user>[C]"
        assert render(EITHER, [user(TWO_PARTS), user("C")]) == "[A][B]C"

    @pytest.mark.parametrize(
        ("source", "takes"),
        [
            (CHATML, False),
            (PARTS, True),
            (EITHER, True),
            ("{% for p in messages[0].content | selectattr('text') %}{% endfor %}", True),
            ("{% macro f(content) %}{% for p in content %}{% endfor %}{% endmacro %}", True),
            ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", False),
        ],
    )
    def test_a16_what_a_template_takes_is_found_out(self, source: str, takes: bool) -> None:
        assert ChatTemplate(source).takes_parts is takes

    @pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", None])
    def test_a16_other_parts_are_refused(self, kind: str | None) -> None:
        part = {"type": kind, kind or "x": {"url": "http://169.254.169.254/"}}
        with pytest.raises(ChatError, match=r"messages\[1\]\.content\[1\].*text only") as caught:
            render(CHATML, [user(), user([TWO_PARTS[0], part])])
        assert caught.value.param == "messages[1].content[1]"

    def test_a16_null_content_of_a_message_with_tool_calls(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "1", "content": TWO_PARTS}
        text = render(CHATML, [user(), calling, result])
        assert "<|im_start|>assistant\n<|im_end|>" in text
        assert "<|im_start|>tool\nA\nB<|im_end|>" in text

    @pytest.mark.parametrize("message", [user(None), {"role": "assistant"}, {"role": "user"}])
    def test_a12_null_content_otherwise_is_refused(self, message: dict[str, Any]) -> None:
        with pytest.raises(ChatError, match=r"messages\[0\]\.content must be text"):
            render(CHATML, [message])

    def test_a12_empty_content_is_taken(self) -> None:
        assert "<|im_start|>user\n<|im_end|>" in render(CHATML, [user("")])

    @pytest.mark.parametrize(
        "messages",
        [[], "hi", None, ["hi"], [{"content": "x"}], [{"role": 3, "content": "x"}], [user(7)]],
    )
    def test_a12_malformed_messages_are_refused(self, messages: Any) -> None:
        with pytest.raises(ChatError, match="messages"):
            render(CHATML, messages)

    def test_messages_are_not_changed(self) -> None:
        messages = [user(TWO_PARTS), {"role": "assistant", "content": TWO_PARTS}]
        before = copy.deepcopy(messages)
        for source in (CHATML, PARTS):
            render(source, messages, add_generation_prompt=False, continue_final_message=True)
        assert messages == before


class TestToolCalls:
    SOURCE = "{% for c in messages[0].tool_calls %}{{ c.function.arguments.city }}{% endfor %}"

    def message(self, arguments: Any) -> dict[str, Any]:
        call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
        return {"role": "assistant", "tool_calls": [call]}

    def test_arguments_become_an_object(self) -> None:
        assert render(self.SOURCE, [self.message('{"city": "Zürich"}')]) == "Zürich"
        assert render(self.SOURCE, [self.message({"city": "Rome"})]) == "Rome"
        assert render(self.SOURCE, [self.message("")]) == ""

    def test_bad_arguments_are_refused(self) -> None:
        with pytest.raises(ChatError, match=r"tool_calls\[0\]\.function\.arguments is not valid"):
            render(self.SOURCE, [self.message("{city")])
        with pytest.raises(ChatError, match=r"tool_calls\[0\] must have a function"):
            render(self.SOURCE, [{"role": "assistant", "tool_calls": [{"id": "1"}]}])

    def test_the_tool_variant_is_used_with_tools(self) -> None:
        template = ChatTemplate("plain", tool_source="{{ tools[0].name }}")
        assert template.render([user()]) == "plain"
        assert template.render([user()], tools=[{"name": "f"}]) == "f"
        assert template.render([user()], tools=[]) == "plain"


class TestRefusals:
    """Case A17."""

    @pytest.mark.parametrize(
        ("messages", "words"),
        [
            ([{"role": "system", "content": "S"}, user()], "System role not supported"),
            ([user(), user()], "Conversation roles must alternate"),
        ],
    )
    def test_a17_the_templates_own_words(self, messages: list[Any], words: str) -> None:
        with pytest.raises(ChatError, match=words):
            render(GEMMA, messages)

    def test_a17_ending_with_the_assistant(self) -> None:
        messages = [user("Q"), {"role": "assistant", "content": "A"}]
        assert render(GEMMA, messages) == "<s><user>Q<assistant>A"

    def test_a17_system_text_folded_into_the_first_user_turn(self) -> None:
        template = ChatTemplate(GEMMA, {"bos_token": "<s>"}, fold_system=True)
        messages = [{"role": "system", "content": "Be brief."}, user(TWO_PARTS)]
        assert template.render(messages) == "<s><user>Be brief.\n\nA\nB"
        assert template.render(messages[1:]) == "<s><user>A\nB"
        assert template.render(messages[:1]) == "<s><user>Be brief."

    def test_folded_for_a_template_that_takes_parts(self) -> None:
        template = ChatTemplate(PARTS, fold_system=True)
        messages = [{"role": "system", "content": TWO_PARTS}, user("Q")]
        assert template.render(messages) == "<user>[A\nB\n\nQ]"

    @pytest.mark.parametrize(
        "source", ["{% for m in messages %}", "{{ 1 + }}", "{{ x | no_such_filter }}", "{% what %}"]
    )
    def test_a17_a_broken_template_fails_when_it_is_made(self, source: str) -> None:
        with pytest.raises(ChatError, match="does not compile") as caught:
            ChatTemplate(source)
        assert caught.value.param == "chat_template"

    @pytest.mark.parametrize(
        "source",
        [
            "{{ 1 / 0 }}",
            "{{ messages + 1 }}",
            "{{ messages[0].nothing.more }}",
            "{{ messages | sum }}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "{% include 'x' %}",
        ],
    )
    def test_a17_a_failing_template_is_a_chat_error(self, source: str) -> None:
        with pytest.raises(ChatError, match="the chat template"):
            render(source, [user()])


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    messages = [{"role": "developer", "content": "D"}, user()]
    assert render(CHATML, messages).startswith("<|im_start|>system\nD")
    knows = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert render(knows, messages) == "yes"


def test_a18_one_bos_from_the_template() -> None:
    tokenizer = byte_level()
    source = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    text = ChatTemplate(source, tokenizer.named_tokens).render([user("hello")])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.bos_id or -1) == 1 and ids[0] == tokenizer.bos_id


class TestContinuing:
    @pytest.mark.parametrize("source", [CHATML, GEMMA, EITHER])
    def test_the_last_message_stays_open(self, source: str) -> None:
        messages = [user("Q"), {"role": "assistant", "content": "Yes, because"}]
        text = render(source, messages, add_generation_prompt=False, continue_final_message=True)
        assert text.endswith("Yes, because")

    def test_trailing_space_as_the_template_has_it(self) -> None:
        messages = [user("Q"), {"role": "assistant", "content": "Yes, "}]
        options = {"add_generation_prompt": False, "continue_final_message": True}
        assert render(CHATML, messages, **options).endswith("Yes, ")
        assert render(GEMMA, messages, **options).endswith("Yes,")

    def test_parts(self) -> None:
        messages = [user("Q"), {"role": "assistant", "content": TWO_PARTS}]
        options = {"add_generation_prompt": False, "continue_final_message": True}
        assert render(PARTS, messages, **options).endswith("[A][B")

    def test_not_with_a_generation_prompt(self) -> None:
        with pytest.raises(ChatError, match="exclude each other"):
            render(CHATML, [user()], continue_final_message=True)

    def test_a_template_that_hides_the_message_is_refused(self) -> None:
        with pytest.raises(ChatError, match="cannot be continued"):
            render("x", [user()], continue_final_message=True, add_generation_prompt=False)


class TestVariables:
    """Case D10: chat_template_kwargs."""

    SOURCE = "{% if enable_thinking %}think{% else %}plain{% endif %}{{ messages[0].content }}"

    def test_known_names_are_handed_over_unknown_ones_ignored(self) -> None:
        template = ChatTemplate(self.SOURCE)
        assert template.variables == {"enable_thinking"}
        assert template.render([user()], variables={"enable_thinking": True}) == "thinkHi"
        assert template.render([user()], variables={"other": True}) == "plainHi"

    @pytest.mark.parametrize(
        "name",
        [
            *("messages", "tokenize", "add_generation_prompt", "conversation", "chat_template"),
            *("bos_token", "raise_exception", "range", "__class__", "_x", "tools"),
        ],
    )
    def test_d10_reserved_names_are_refused(self, name: str) -> None:
        template = ChatTemplate(self.SOURCE, {"bos_token": "<s>"})
        with pytest.raises(ChatError, match="reserved") as caught:
            template.render([user()], variables={name: []})
        assert caught.value.param == "chat_template_kwargs"


def test_filters_and_globals_that_templates_use() -> None:
    source = (
        "{{ {'b': '<é>', 'a': [1, none]} | tojson }}"
        "|{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}"
        "|{{ strftime_now('%d %B %Y') }}|{{ 'x' | indent(2, true) }}|{{ ['a', 'b'] | join('-') }}"
        "|{{ 'aXb' | replace('X', '+') }}|{{ '%s=%d' | format('n', 3) }}|{{ '{:>3}'.format(7) }}"
        "|{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}"
        "{% endif %}{{ i }}{% endfor %}|{% generation %}g{% endgeneration %}"
        "|{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
        "|{% filter upper %}{{ 'up' }}{% endfilter %}|{{ [{'k': 1}] | join('', attribute='k') }}"
        "|{{ 'n: ' ~ 1 ~ [2] }}"
    )
    template = ChatTemplate(source, now=lambda: datetime(2026, 1, 2))
    assert template.render([user()]) == (
        '{"b": "<é>", "a": [1, null]}|{"a": 2, "b": 1}|02 January 2026|  x|a-b|a+b|n=3|  7'
        "|02|g|2|UP|1|n: 1[2]"
    )
