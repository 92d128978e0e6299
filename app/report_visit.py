"""The inner process of specfit-report: one placement, which answers what it is asked.

    python -m specfit.app.report_visit

reads a job and then requests as JSON lines, and answers in JSON lines: what was loaded, a run for
every mode of a request, or the reason why it ends. It ends when its input does, so it never
outlives the process that started it by more than a round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .bench_runs import WARM_UP_TOKENS
from .entry import INTERRUPTED, USER_ERROR, AppError, user_sentence
from .interrupts import Interrupts
from .options import ModelChoice
from .prompts import Prompt
from .report_context import context_for
from .report_plan import PLAIN
from .report_round import Rounds
from .report_store import record_of

if TYPE_CHECKING:
    from specfit.backend import Engine, Report
    from specfit.backend.calibration import Measured

# Tokens that the last cycles of an answer may bring beyond its limit.
OVERSHOOT = 32
Say = Callable[[dict[str, Any]], None]


def choice_as_json(choice: ModelChoice) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(choice).items()
    }


def _choice_of(record: dict[str, Any]) -> ModelChoice:
    paths = {name: Path(record[name]) for name in ("model", "model_draft") if record[name]}
    return ModelChoice(**{**record, **paths})


def main() -> None:
    """Entry point of the inner process."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries may print, and would break a line

    def say(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=out, flush=True)

    code = 0
    with Interrupts() as interrupts:
        try:
            _visit(sys.stdin, say, interrupts)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BrokenPipeError:
            code = USER_ERROR  # whoever asked is gone
        except Exception as error:
            sentence = user_sentence(error)
            if sentence is None:
                raise
            say({"error": sentence})
            code = USER_ERROR
    sys.exit(code)


def _visit(requests: IO[str], say: Say, interrupts: Interrupts) -> None:
    job = json.loads(requests.readline())
    prompts = [Prompt(number, kind, tuple(messages)) for kind, number, messages in job["prompts"]]
    from specfit.backend import Engine

    def goes_on(_fraction: float) -> bool:
        return not interrupts.pending

    begun = time.monotonic()
    room = job["room"] + OVERSHOOT
    lines = len([mode for mode in job["modes"] if mode != PLAIN]) + 1
    options = _choice_of(job["choice"]).load_options(drafting=True, lines=lines)
    if options.ctx is None:
        options = replace(options, ctx=context_for(options.model, prompts, room))
    with Engine.load(options, progress=goes_on) as engine:
        interrupts.check()
        if not engine.drafts:
            raise AppError(engine.notices[0])
        _check_room(engine, prompts, room)
        assert engine.measured is not None  # for its drafts
        load_s = time.monotonic() - begun
        rounds = Rounds(engine, job["modes"], interrupts)
        try:
            begun = time.monotonic()
            warm = rounds.play(prompts[0], job["modes"], WARM_UP_TOKENS)
            placement = engine.model.placement
            say(
                {
                    "description": engine.description,
                    "notices": list(engine.notices),
                    "threads": engine.context.threads,
                    "layers": engine.model.info.n_layers,
                    "gpu_layers": placement.gpu_layers,
                    "n_cpu_moe": placement.n_cpu_moe,
                    "load_s": load_s,
                    "warm_s": time.monotonic() - begun,
                    "token_s": {one.mode: _token_s(one.report, one.took_s) for one in warm},
                    "gpu": _gpu_name(),
                    "profile": profile_of(engine.measured, engine),
                }
            )
            for line in requests:
                request = json.loads(line)
                prompt = prompts[request["prompt"]]
                for timed in rounds.play(prompt, request["modes"], request["tokens"]):
                    say(record_of(timed))
        finally:
            rounds.close()


def _check_room(engine: Engine, prompts: Sequence[Prompt], answer: int) -> None:
    """Raises AppError for a prompt that does not fit with its answer; its id is its kind."""
    for prompt in prompts:
        needed = engine.count_tokens(prompt.messages) + answer
        if needed > engine.ctx:
            raise AppError(
                f"{prompt.id}, line {prompt.number}: prompt and answer need {needed} tokens and "
                f"the context holds {engine.ctx}; raise -c to {needed}, or lower -n"
            )


def _gpu_name() -> str | None:
    from specfit.backend.devices import gpu_names

    return next(iter(gpu_names()), None)


def _token_s(report: Report, took_s: float) -> float:
    speed = report.tokens_per_second
    return 1 / speed if speed else took_s


def profile_of(measured: Measured, engine: Engine) -> dict[str, Any]:
    """What calibration found, as a cost profile that --cost-profile and replays read; and what
    such a profile has no words for yet."""
    from specfit.backend.calibration import CONTEXT_ROWS

    info = engine.model.info
    # Drafting one or two nodes a level is what cycles mostly do.
    level_ms = sum(measured.level_ms[:3]) / len(measured.level_ms[:3])
    return {
        "layers": info.n_layers,
        "top_k": info.n_experts_used,
        "experts": info.n_experts,
        "draft_level_ms": level_ms,
        "points": [vars(point) for point in measured.points],
        "level_ms": measured.level_ms,
        "switch_ms": measured.switch_ms,
        "settle_ms": measured.settle_ms,
        "context_ms": measured.context_ms,
        "context_rows": list(CONTEXT_ROWS) if measured.context_ms else [],
        "observe_ms": measured.observe_ms,
        "cached": measured.cached,
    }


if __name__ == "__main__":
    main()
