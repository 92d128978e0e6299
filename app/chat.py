"""specfit-chat: the terminal chat, and one answer for scripts and pipes."""

from __future__ import annotations

import os
import sys

import click

from .entry import AppError, nobody_listens, run, say
from .interrupts import Interrupts
from .options import (
    NO_LIMIT,
    ModelChoice,
    SamplingChoice,
    model_options,
    parse_spec,
    predict_option,
    sampling_options,
    spec_option,
    token_limit,
)

SHOWCASE_QUESTION = "Why do people like to watch the stars at night?"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-p", "--prompt", metavar="TEXT", help="Answer TEXT on stdout and leave.")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--continue", "go_on", is_flag=True, help="Go on with the last conversation.")
@click.option("--resume", metavar="WORDS", help="Go on with the last one with WORDS in its title.")
@model_options
@sampling_options
@spec_option
@predict_option(NO_LIMIT, "until the answer or the context ends")
def chat(
    prompt: str | None,
    system: str | None,
    go_on: bool,
    resume: str | None,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    spec: str,
    predict: int,
) -> int:
    """Chat with a Mixture-of-Experts model in the terminal.

    With -p TEXT, or with text piped in, the answer alone goes to stdout. Where there is neither
    that nor a terminal, one question is answered with its statistics.
    """
    if prompt is not None and not prompt.strip():
        raise click.UsageError("-p needs a text to answer.")
    if prompt is None and not sys.stdin.isatty():
        prompt = _piped_text()
    for text in (prompt, system):
        (text or "").encode()  # what is no text is refused before a model is loaded
    if nobody_listens():
        raise AppError("standard output is closed, so there is nobody to answer")
    mode = parse_spec(spec)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    if prompt is None and has_terminal:
        if not sys.stderr.isatty():
            raise AppError("the chat draws on stderr, which goes elsewhere; leave 2> out")
        if os.environ.get("TERM") == "dumb":
            raise AppError("this terminal (TERM=dumb) has no screen to draw on; ask with -p TEXT")
        from .chat_setup import set_up
        from .hub_fetch import fetched
        from .parameters import Parameters
        from .settings import read_settings, settings_path
        from .tui import run_chat

        parameters = Parameters.given(sampling_choice, predict, spec)
        settings = read_settings(settings_path())
        resumed = "" if go_on and resume is None else resume
        return run_chat(set_up(fetched(choice), parameters, settings, system, resumed))
    if go_on or resume is not None:
        raise click.UsageError("--continue and --resume open the chat; they need a terminal.")

    from .loading import loaded_engine
    from .oneshot import print_answer
    from .stats import statistics

    showcase = prompt is None
    with (
        Interrupts() as interrupts,
        loaded_engine(choice, interrupts, drafting=mode.drafts) as engine,
    ):
        generation = engine.generate(
            messages=conversation(system, prompt or SHOWCASE_QUESTION),
            sampling=sampling_choice.over(engine.recommended_sampling),
            max_tokens=token_limit(predict),
            spec=mode,
        )
        if showcase:
            print(f"{engine.description}\n\n> {SHOWCASE_QUESTION}\n", flush=True)
        report = print_answer(generation, interrupts)
        if showcase:
            print(f"\n{statistics(report, spec)}")
        elif sys.stderr.isatty():
            say(statistics(report, spec))
    return 0


def conversation(system: str | None, question: str) -> list[dict[str, str]]:
    """The messages of a first question."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": question}]


def _piped_text() -> str | None:
    """What is piped in; None if that is nothing.

    Raises AppError if it is not text.
    """
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AppError("what is piped in is not UTF-8 text") from error
    return text.rstrip("\n") if text.strip() else None


def main() -> None:
    """Entry point of `specfit-chat`."""
    run(chat, "specfit-chat")
