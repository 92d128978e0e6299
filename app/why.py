"""Why the planner drafts what it drafts, in words, from its own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit.planner import Reason, Step

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_SIMPLE = {
    "headless": "no draft: there is no head",
    "full": "no draft: the context is full",
}
# Why there are no more drafts, where not for their price.
_ENDS = {
    "unlikely": "no other is likely enough",
    "context": "the context ends behind them",
    "deepest": "no tree is deeper",
    "rows": "no more fit into one batch",
}


def why(reason: Reason, mode: str, drafted: int) -> str:
    """One line on a cycle of `mode` (as typed) that verified so many drafts."""
    if reason.kind == "mode":
        return _forced(mode, drafted)
    if reason.kind in _SIMPLE:
        return _SIMPLE[reason.kind]
    if reason.kind == "hopeless":
        return _hopeless(reason)
    if reason.kind == "unpromising" or reason.drafts == 0:
        return _none(reason)
    trial = ", a trial" if reason.trial else ""
    return f"{_counted(reason.drafts)}{trial}: {_limit(reason)}"


def whys(reason: Reason, mode: str, drafted: int) -> tuple[str, ...]:
    """The same with what else was weighed, a sentence each."""
    first = why(reason, mode, drafted)
    if reason.step is None or reason.level is None:
        return (first,)
    return (first, f"drafting stopped: {_another_level(reason.level, reason.token_ms)}")


def _forced(mode: str, drafted: int) -> str:
    if mode == "off":
        return "drafting is switched off"
    if mode.startswith("chain"):
        return f"forced: chain of {drafted}"
    return f"forced: tree of {drafted}"


def _hopeless(reason: Reason) -> str:
    assert reason.step is not None
    n = reason.step.drafts
    ms = _number(reason.step.ms)
    some = "one" if n == 1 else str(n)
    return f"no draft: even {some} sure to be right would cost {ms} ms ({_price(reason)})"


def _none(reason: Reason) -> str:
    step = reason.step
    if step is None:
        return "no draft: the head finds none that is likely"
    if step.pays(reason.token_ms):
        why = _promise("one", step) if reason.kind == "unpromising" else _limit(reason)
        return f"no draft: {why}"
    best = "one" if reason.kind == "unpromising" else "the best one"
    cost = f"{best} would cost {_number(step.ms)} ms for {_tokens(step)}"
    return f"no draft: {cost} ({_price(reason)})"


def _limit(reason: Reason) -> str:
    """What keeps a cycle from more than these drafts."""
    step = reason.step
    if step is not None and step.pays(reason.token_ms):
        return "the best tree found in the time there is for planning"
    if step is not None:
        more = _ordinal(reason.drafts + 1)
        return f"{more} would cost {_number(step.ms)} ms for {_tokens(step)}"
    if reason.level is not None:
        return _another_level(reason.level, reason.token_ms)
    return _ENDS.get(reason.end, "all there were")


def _another_level(level: Step, token_ms: float) -> str:
    ms = _number(level.ms)
    if level.pays(token_ms):
        return _promise("another level", level)
    return f"another level costs {ms} ms and promises {_tokens(level)}"


def _promise(what: str, step: Step) -> str:
    """Of a step that should pay and was not taken: what such steps have gained corrects it."""
    return f"{what} promises {_tokens(step)} for {_number(step.ms)} ms, but they fall short"


def _price(reason: Reason) -> str:
    return f"a token costs {_number(reason.token_ms)} ms"


def _tokens(step: Step) -> str:
    if step.tokens < 0.0005:
        return "nothing"
    return f"{_number(step.tokens) if step.tokens >= 0.1 else f'{step.tokens:.1g}'} tokens"


def _counted(drafts: int) -> str:
    return "1 draft" if drafts == 1 else f"{drafts} drafts"


def _ordinal(n: int) -> str:
    """With its article: a third, an eighth, one more."""
    if n > len(_ORDINALS):
        return "one more"
    word = _ORDINALS[n - 1]
    return f"an {word}" if word == "eighth" else f"a {word}"


def _number(value: float) -> str:
    """Two digits that count: 0.02, 1.4, 22, 140."""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}"
