"""Chat templates are followed as elsewhere, by a process that outlives none of their tricks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from tinymodel import CHAT_TEMPLATE

from specfit.backend import SpecfitError, templates
from specfit.backend.confined import Confined
from specfit.backend.templates import follow
from specfit.models import bundled_model
from specfit.models.gguf_info import read_gguf_info

MESSAGES = [
    {"role": "system", "content": "Be <brief>."},
    {"role": "user", "content": "Zwölf & “drei”?"},
    {"role": "assistant", "content": "15\n"},
]
BRANCHING = """
    {%- for message in messages if message.role != 'system' -%}
        {%- if loop.index > 2 %}{% break %}{% endif -%}
        {% generation %}{{ bos_token + message.content|trim }}{% endgeneration %}
    {%- endfor %}
    {% if tools is none %}none{% endif %}
    {{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}
    {% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}
    {{ ns.n }} {{ strftime_now('%Y') }} {{ '%s' | format(eos_token) }} {{ '<b>' }}
"""


def values(**more: Any) -> dict[str, Any]:
    return {
        "messages": MESSAGES,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "tools": None,
        **more,
    }


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Confined]:
    """A process that gives up after a second."""
    process = Confined("follow_template.py", 10**6, seconds=1, size=templates.BYTES)
    monkeypatch.setattr(templates, "process", process)
    yield process
    process.close()


@pytest.mark.parametrize(
    "template",
    [
        str(read_gguf_info(bundled_model()).metadata["tokenizer.chat_template"]),
        CHAT_TEMPLATE,
        BRANCHING,
    ],
)
def test_a_template_makes_what_it_makes_in_llama_cpps_own_binding(template: str) -> None:
    theirs = Jinja2ChatFormatter(template, eos_token="</s>", bos_token="<s>")
    messages: Any = MESSAGES
    assert follow(template, values()) == theirs(messages=messages).prompt


def test_what_a_template_says_of_messages_is_told() -> None:
    with pytest.raises(SpecfitError, match=r"refuses these messages: no systems, please$"):
        follow("{{ raise_exception('no systems,\n please') }}", values())


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def test_a_template_that_never_ends_is_ended_and_the_next_one_followed(quick: Confined) -> None:
    with pytest.raises(SpecfitError, match="takes more than 1 s of computing"):
        follow(ENDLESS, values())
    assert follow("{{ messages|length }}", values()) == "3"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds memory")
def test_a_template_that_fills_memory_gets_no_more_than_its_share(quick: Confined) -> None:
    quick.seconds = 30  # of which it needs one, on a machine that is not busy
    double = "{% set n.s = n.s ~ n.s %}"
    template = "{% set n = namespace(s='aa') %}{% for i in range(60) %}" + double + "{% endfor %}"
    with pytest.raises(SpecfitError, match="asks for more memory than it may have"):
        follow(template, values())
    assert follow("as before", values()) == "as before"
    assert quick._process is not None
    status = Path(f"/proc/{quick._process.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) << 10 < templates.BYTES + (100 << 20)


def test_a_process_that_died_in_the_meantime_is_begun_anew(quick: Confined) -> None:
    assert follow("a", values()) == "a"
    assert quick._process is not None
    quick._process.kill()
    quick._process.wait()
    assert follow("b", values()) == "b"


def test_an_answer_that_was_not_waited_for_is_nobody_elses(
    quick: Confined, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(process: Any, line: str) -> None:
        process.stdin.write(line)
        process.stdin.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(quick, "_exchanged", interrupted)
        follow("the first", values())
    assert follow("the second", values()) == "the second"


def test_threads_get_their_own_answers(quick: Confined) -> None:
    wrong: list[str] = []

    def ask(name: str) -> None:
        for n in range(30):
            text = f"{name} {n}"
            if (found := follow(text, values())) != text:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_characters_than_can_be_meant_are_refused(quick: Confined) -> None:
    with pytest.raises(SpecfitError, match="makes 1,000,001 characters of these messages"):
        follow("{{ 'a' * 1000001 }}", values())
