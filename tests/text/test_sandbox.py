"""Case D10: what a hostile template can do is fail, soon."""

from __future__ import annotations

import threading
import time
import tracemalloc

import pytest

from octavo.text.chat import ChatTemplate
from octavo.text.errors import ChatError

HI = [{"role": "user", "content": "Hi"}]

RUNS_LONG = [
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n > 0 }}{% endfor %}"
    "{% endmacro %}{{ f(40) }}",
    "{% set x %}{% for a in range(99999) %}" + "y" * 5000 + "{% endfor %}{% endset %}",
    "{% for a in range(99999) if false %}{% endfor %}" * 2
    + "{% for a in range(99999) %}{% set s = range(99999) | sum %}{% endfor %}",
]
ASKS_MUCH = [
    "{{ 'x' * 10**9 }}",
    "{{ 10**9 * 'x' }}",
    "{{ [1] * 10**9 }}",
    "{{ 9**99999 }}",
    "{{ 2**4000 * 2**4000 }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ('' ~ ns.x) | length }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x | string | length }}",
    "{% set ns = namespace(x='\"') %}{% for i in range(60) %}{% set ns.x = ns.x | tojson %}"
    "{% endfor %}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.center(10**9) }}",
    "{{ '7'.zfill(10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ 'x\nx' | indent(10**9) }}",
    "{{ [1] | batch(10**9, 0) | list }}",
    "{{ [1] | tojson(indent=10**9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{% set s = 'x' * 500000 %}{{ s | replace('x', s) }}",
    "{% set s = 'x' * 500000 %}{{ s.replace('x', s) }}",
    "{% set s = 'x' * 500000 %}{{ ('x' * 100000) | list | join(s) }}",
    "{% set s = 'x' * 500000 %}{{ s.join(('x' * 100000) | list) }}",
    "{{ lipsum(n=10**6) }}",
    "{{ strftime_now('%99999999d') }}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{% import 'os' as os %}",
    "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
]


@pytest.mark.parametrize("source", RUNS_LONG)
def test_d10_long_renderings_are_cut_off(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(ChatError, match=r"too much work|takes too long"):
        ChatTemplate(source, max_seconds=0.5).render(HI)
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize("source", ASKS_MUCH)
def test_d10_little_templates_cannot_ask_for_much(source: str) -> None:
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(ChatError):
            ChatTemplate(source, max_work=1_000_000, max_seconds=1.0).render(HI)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 10.0


@pytest.mark.parametrize("source", ESCAPES)
def test_d10_no_way_out_of_the_sandbox(source: str) -> None:
    with pytest.raises(ChatError, match="the chat template"):
        rendered = ChatTemplate(source).render(HI)
        # Jinja hides an unsafe attribute as an undefined value, which has no text.
        assert rendered.strip() in ("", "[]")
        raise ChatError("the chat template shows nothing")


def test_d10_long_sources_do_not_compile() -> None:
    with pytest.raises(ChatError, match="1000001 characters"):
        ChatTemplate("x" * 1_000_001)
    with pytest.raises(ChatError, match="does not compile"):
        ChatTemplate("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")


def test_budgets_of_threads_do_not_mix() -> None:
    """A rendering that spends its budget leaves the others theirs."""
    source = "{% for i in range(messages[0].content | int) %}x{% endfor %}"
    template = ChatTemplate(source, max_work=30_000)
    results: dict[int, str] = {}

    def run(turns: int) -> None:
        try:
            results[turns] = template.render([{"role": "user", "content": str(turns)}])
        except ChatError as error:
            results[turns] = str(error)

    threads = [threading.Thread(target=run, args=(turns,)) for turns in (10_000, 10_001, 50_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results[10_000]) == 10_000
    assert len(results[10_001]) == 10_001
    assert "too much work" in results[50_000]


def test_a_long_conversation_fits_the_budget() -> None:
    source = (
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content | trim ~ '</s>' }}{% endfor %}"
    )
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": "word " * 200} for i in range(2000)]
    assert len(ChatTemplate(source).render(messages)) > 2_000_000
