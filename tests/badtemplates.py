"""Chat templates that are no good, and what must be said of each."""

from __future__ import annotations

from badfiles import Writes
from badgguf import changed
from gguf import GGUFValueType

# Of all time and memory, the tests leave a template one second and half a GiB.
TEMPLATES: dict[str, tuple[str, str]] = {
    "no end of loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "takes more than 1 s",
    ),
    "a list of lists of lists": (
        "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
        "{{ n.s }}",
        "takes more than 1 s|more memory",
    ),
    "a long range": ("{% for a in range(10**9) %}{% endfor %}", "OverflowError: Range too big"),
    "a text of 10^10": ("{{ 'a' * 10**10 }}", "asks for more memory"),
    "a line of 10^10": ("{{ 'a'|center(10**10) }}", "asks for more memory"),
    "a format of 10^10": ("{{ '%10000000000d' % 1 }}", "asks for more memory"),
    "a text doubled": (
        "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}"
        "{% endfor %}{{ n.s }}",
        "takes more than 1 s|more memory",
    ),
    "17 million letters": ("{{ 'a' * 17000000 }}", "makes 17,000,000 characters"),
    "2 million letters": ("{{ 'a' * 2000000 }}", "the prompt has 2,000,000 characters"),
    "macros without end": ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
    "brackets": ("{{ " + "[" * 50_000 + "]" * 50_000 + " }}", "RecursionError"),
    "no template": ("{% for m in %}", "TemplateSyntaxError: Expected an expression"),
    "a refusal": (
        "{{ raise_exception('Roles must\nalternate.') }}",
        "refuses these messages: Roles must alternate",
    ),
    "the way out": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "SecurityError: access to attribute",
    ),
    "a shell": ("{{ cycler.__init__.__globals__.os.popen('touch ran') }}", "SecurityError"),
    "a file": ("{% include '/etc/passwd' %}", "TemplateNotFound"),
    "a module": ("{% import 'os' as os %}", "TemplateNotFound"),
    "what is not there": ("{{ tool.name }}", "UndefinedError: 'tool' is undefined"),
    "nothing by 0": ("{{ 1 // 0 }}", "ZeroDivisionError"),
    "half a character": ("{{ '\\ud800' }}", "UnicodeEncodeError"),
    "nothing": ("{# #}", "the prompt is empty"),
}


def templated(template: str) -> Writes:
    return changed("tokenizer.chat_template", template, GGUFValueType.STRING)
