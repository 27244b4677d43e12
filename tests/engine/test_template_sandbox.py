"""Templates that mean harm: no way out of the sandbox, and an end in bounded time and memory, as an error of the request."""

import resource
import threading
import time
from contextlib import suppress

import pytest

from engine.chat import ChatTemplate
from engine.core.errors import RequestError
from engine.template_sandbox import MAX_STEPS, BoundedSandbox, TooMuchWorkError
from tests.gateway.vocabulary import byte_codec

GROWING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
ENDLESS = {
    "one loop": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that print": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "recursive macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1,2] recursive %}{{ loop([1,2]) }}{% endfor %}",
    "repetition": "{{ 'x' * 10**10 }}",
    "repetition of a list": "{{ [0] * 10**10 }}",
    "product of products": "{{ 'x' * 99999 * 99999 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "power of a float": "{{ 2 ** 1e9 }}",
    "doubling by +": GROWING + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": GROWING + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by a block": GROWING + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "doubling by join": GROWING + "{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling by replace": GROWING + "{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "doubling by format": GROWING + "{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "doubling by %": GROWING + "{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by a filter": GROWING + "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}{% endfor %}",
    "doubling a list": GROWING.replace("'ab'", "[1]") + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "squaring by replace": "{% set x = 'a' * 9**5 %}{{ x.replace('a', x) }}",
    "squaring by join": "{{ ('a' * 9**5).join(['b'] * 9**5) }}",
    "centre": "{{ 'x'|center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "indent": "{{ ('\\n' * 9**5)|indent(9**5) }}",
    "wide %": "{{ '%9999999999d' % 1 }}",
    "wide format": "{{ '{:>9999999999}'.format('x') }}",
    "wide format filter": "{{ '%9999999999s'|format('x') }}",
    "width from elsewhere": "{{ '%*d' % (9999999999, 1) }}",
    "words without end": "{{ lipsum(n=10**9) }}",
}  # fmt: skip
OUTWARD = [
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages|attr('__class__') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ self._TemplateReference__context.environment }}{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ '{0.__class__.__mro__}'.format('x') }}",
    "{{ '{0.__class__}'.format_map({'0': 'x'}) }}",
    "{{ messages.append({}) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ (messages|map(attribute='__class__')|list)[0].__name__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends 'x' %}",
    "{{ config }}{{ request.application }}",
    "{{ environment.count_step() }}",
]


def encode(source: str) -> None:
    ChatTemplate(byte_codec(), source).encode([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("what", ENDLESS)
def test_template_without_end_ends(what: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.thread_time()
    with pytest.raises(RequestError) as raised:
        encode(ENDLESS[what])
    assert raised.value.param == "messages"
    assert "\n" not in raised.value.message
    assert time.thread_time() - started < 20  # of this thread's own work; a second as a rule
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


@pytest.mark.parametrize("source", OUTWARD)
def test_template_cannot_reach_outside(source: str) -> None:
    """What is unsafe is an error, or as if it were not there."""
    chat = ChatTemplate(byte_codec(), source)
    said = ""
    with suppress(RequestError):
        said = chat.render([{"role": "user", "content": "hi"}], escape="\uf8ff")
    assert said == ""


def test_each_rendering_has_a_budget_of_its_own_in_every_thread() -> None:
    sandbox = BoundedSandbox()
    template = sandbox.template_of("{% for i in range(9000) %}{% endfor %}done")
    said: list[str] = []

    def render() -> None:
        for _ in range(12):
            with sandbox.bounds():
                said.append(template.render())

    threads = [threading.Thread(target=render) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["done"] * 36
    assert MAX_STEPS < 36 * 9_000
    many = sandbox.template_of("{% for i in range(9000) %}{% endfor %}" * 23)
    with pytest.raises(TooMuchWorkError, match="steps"), sandbox.bounds():
        many.render()


def test_what_templates_of_models_do_is_left_alone() -> None:
    source = (
        "{%- set ns = namespace(found=false, last=messages|length - 1) -%}"
        "{%- for m in messages[::-1] -%}{%- set ns.last = loop.index0 -%}{%- endfor -%}"
        "{%- macro turn(m, i) -%}<{{ m.role }}>{{ m.content.split('</think>')[-1].lstrip('\\n') | trim }}{%- endmacro -%}"
        "{%- for m in messages -%}{{ turn(m, loop.index) + '\\n' }}{%- if loop.last -%}{{ '%02d' % ns.last ~ '|' ~ '-' * 3 }}{%- endif -%}"
        "{%- endfor -%}{{ messages | map(attribute='role') | join(', ') }} {{ {'a': 'é'} | tojson }} {{ 2 ** 10 }}"
    )
    chat = ChatTemplate(byte_codec(), source)
    messages = [{"role": "user", "content": "x" * 500_000 + "</think>\nhi"}] * 3
    assert chat.render(messages, escape="\uf8ff") == (
        "<user>hi\n" * 3 + '02|---user, user, user {"a": "é"} 1024'
    )
