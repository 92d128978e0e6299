"""Why the planner drafts what it drafts, in words, from its own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit.planner import Reason, Step

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
_SIMPLE = {
    "headless": "no draft: no draft head is loaded",
    "unmatched": "no draft: the text so far tells nothing sure enough of what comes",
    "full": "no draft: the context is nearly full",
    "abstaining": "no draft: to see what a cycle without any takes",
    "resting": "no draft: they cost more than they bring here; tried again now and then",
}
# Why there are no more drafts, where not for their price.
_ENDS = {
    "unlikely": "no other is likely enough to be right",
    "context": "the context has no room for more",
    "deepest": "longer ones are never tried",
    "rows": "the model cannot check more at once",
}


def why(reason: Reason, mode: str, drafted: int) -> str:
    """One line on a cycle of `mode` (as typed) that verified so many drafts.

    For readers who know what a token and a draft are, and no more: costs are beside what they
    bring, times beside times. 80 columns hold it behind the speed.
    """
    if reason.kind == "mode":
        return _set(mode, drafted)
    if reason.kind in _SIMPLE:
        return _SIMPLE[reason.kind]
    if reason.kind == "hopeless":
        return _hopeless(reason)
    if reason.kind == "unpromising" or reason.drafts == 0:
        return f"no draft: {_none(reason)}"
    drafts = _counted(reason.drafts, "test draft" if reason.trial else "draft")
    return f"{drafts}: {_limit(reason)}"


def whys(reason: Reason, mode: str, drafted: int) -> tuple[str, ...]:
    """The same with what else was weighed, a sentence each."""
    first = why(reason, mode, drafted)
    if reason.kind != "planned" or reason.drafts == 0:
        return (first,)
    price = f"a token takes {_number(reason.token_ms)} ms"
    if reason.step is None or reason.level is None:
        return (first, price)
    return (first, price, _longer(reason.level, reason.token_ms))


def _set(mode: str, drafted: int) -> str:
    if mode == "off":
        return "no draft: drafting is switched off"
    return f"{_counted(drafted)}: {mode} is set, whatever it costs"


def _hopeless(reason: Reason) -> str:
    """Even drafts that are sure to be right take longer than their tokens do without."""
    assert reason.step is not None
    n = reason.step.drafts
    some = "one" if n == 1 else f"all {n}"
    times = f"{_number(reason.step.ms)} ms instead of {_number(n * reason.token_ms)} ms"
    return f"no draft: even if {some} were right, {times}"


def _none(reason: Reason) -> str:
    step, token_ms = reason.step, reason.token_ms
    if step is None:
        return "none is likely enough to be right"
    if not step.pays(token_ms):
        worth = step.tokens * token_ms
        return f"one would cost {_price(step)}" + (f", worth {_number(worth)} ms" if worth else "")
    if reason.kind == "unpromising":
        return f"one {_disappointing(step)}"
    return "nothing better was found in the time to plan"


def _limit(reason: Reason) -> str:
    """What keeps a cycle from more than these drafts."""
    step = reason.step
    if step is not None and step.pays(reason.token_ms):
        return "the best found in the time to plan"
    if step is not None:
        return f"{_ordinal(reason.drafts + 1)} would cost {_price(step)}"
    if reason.level is not None:
        return _longer(reason.level, reason.token_ms)
    return _ENDS.get(reason.end, "there were no others")


def _longer(level: Step, token_ms: float) -> str:
    """Drafting a level more."""
    if level.pays(token_ms):
        return f"longer ones {_disappointing(level)}"
    return f"longer ones would cost {_price(level)}"


def _disappointing(step: Step) -> str:
    """Of a step that should pay and was not taken: what such steps have gained corrects it."""
    return f"should give {_tokens(step)} for {_number(step.ms)} ms, but gave less"


def _price(step: Step) -> str:
    return f"{_number(step.ms)} ms for {_tokens(step)}"


def _tokens(step: Step) -> str:
    if step.tokens < 0.0005:
        return "next to nothing"
    return f"{_number(step.tokens) if step.tokens >= 0.1 else f'{step.tokens:.1g}'} tokens"


def _counted(drafts: int, noun: str = "draft") -> str:
    return f"{drafts or 'no'} {noun}{'s' if drafts > 1 else ''}"


def _ordinal(n: int) -> str:
    """With its article: a third, an eighth, one more."""
    if n > len(_ORDINALS):
        return "one more"
    word = _ORDINALS[n - 1]
    return f"an {word}" if word == "eighth" else f"a {word}"


def _number(value: float) -> str:
    """Two digits that count: 0.02, 1.4, 22, 140; what is less than a hundredth is 0."""
    if abs(value) < 0.005:
        return "0"
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.2g}"
