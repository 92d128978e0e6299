"""specfit-report's measuring: visits to placements in turn, until every cell is known well enough.

A cell is a placement and a kind of prompts. A visit loads a placement in a process of its own and
plays rounds: one prompt under all modes that still need it, in turns. The first visit plays one
round of every kind, or takes its share of the time, if that has an end: loading again is dear.
Later ones go on until the loading is a small part of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .entry import AppError, say
from .interrupts import Interrupts
from .machine import machine_name
from .report_beside import Beside, measure_beside, serve
from .report_plan import OFF, PLAIN, SPECFIT, Asked, Budget, Placement, Plan
from .report_process import VisitProcess
from .report_round import SEGMENT_S
from .report_stats import doubted, ratio, times
from .report_store import Record, Results, Round, Store
from .report_visit import choice_as_json
from .turns import order_of_round

# A mode's ratio to off is known when its standard error is this small.
TARGET_ERROR = 0.03
# What an answer's tokens are chosen for where nobody says: the time of a round of all modes.
ROUND_S, LEAST_TOKENS, MOST_TOKENS = 40.0, 32, 128
# Later visits last so many times as long as what comes before their first round.
LOADS_OF_A_VISIT = 4
# What is assumed of an unknown visit.
UNKNOWN_VISIT_S = 30.0


def unfinished(rounds: Sequence[Round], modes: Sequence[str]) -> list[str]:
    """The modes of a cell whose ratio to off is not known well enough. rounds: the cell's."""
    return [mode for mode in modes if mode != OFF and not _known(rounds, mode)]


def _known(rounds: Sequence[Round], mode: str) -> bool:
    found = ratio(rounds, mode, OFF)
    return found is not None and doubted(found.error, times(rounds, mode)) <= TARGET_ERROR


def next_round(
    asked: Sequence[Asked], rounds: Sequence[Round], modes: Sequence[str]
) -> tuple[int, list[str]] | None:
    """Index of the prompt to ask next and the modes to ask it under, in their order; None if the
    cell is known well enough, or out of prompts. rounds: the cell's."""
    needed = unfinished(rounds, modes)
    if not needed:
        return None
    done = {(round_.prompt, mode) for round_ in rounds for mode in round_.runs}
    for index, one in enumerate(asked):
        missing = [mode for mode in needed if (one.key, mode) not in done]
        if missing:
            playing = {OFF, *missing} | ({SPECFIT} & set(modes))
            ordered = [mode for mode in modes if mode in playing]
            return index, [ordered[mode] for mode in order_of_round(len(ordered), len(rounds))]
    return None


def chosen_tokens(token_s: Mapping[str, float]) -> int:
    """Tokens an answer, a multiple of 8. token_s: seconds a token of every mode."""
    tokens = int(ROUND_S / sum(token_s.values())) // 8 * 8
    return min(MOST_TOKENS, max(LEAST_TOKENS, tokens))


def measure(
    plan: Plan,
    store: Store,
    beside: Beside,
    command: str,
    budget: Budget,
    interrupts: Interrupts,
) -> dict[str, str]:
    """Measures until all is known, no time is left, or Ctrl-C (KeyboardInterrupt).

    Returns why placements could not be measured, by name.
    """
    failed: dict[str, str] = {}
    while True:
        waiting = [
            placement
            for placement in plan.placements
            if placement.name not in failed
            and _next_cell(plan, store.results, placement.name) is not None
            and budget.has(visit_s(plan, store.results, placement.name))
        ]
        if not waiting:
            break
        placement = min(waiting, key=lambda one: len(store.results.rounds_of(one.name)))
        part_s = budget.part(len(waiting))
        try:
            _visit(plan, placement, store, beside, command, budget, part_s, interrupts)
        except AppError as error:
            failed[placement.name] = str(error)
    for placement in plan.placements:  # where nothing else is left to measure
        try:
            serve(beside, placement, plan, store, budget, interrupts)
        except AppError as error:
            failed.setdefault(placement.name, str(error))
    return failed


def _next_cell(
    plan: Plan, results: Results, placement: str
) -> tuple[Sequence[Asked], int, list[str]] | None:
    """The next round of the kind that had the fewest; None if all kinds are done."""
    modes = [PLAIN, *plan.modes]
    found = []
    for asked in plan.kinds.values():
        rounds = results.rounds_of(placement, asked[0].kind)
        following = next_round(asked, rounds, modes)
        if following is not None:
            found.append((len(rounds), asked, *following))
    if not found:
        return None
    _, asked, index, playing = min(found, key=lambda one: one[0])
    return asked, index, playing


def visit_s(plan: Plan, results: Results, placement: str) -> float:
    """What a visit with one round takes, as far as that is known; in seconds."""
    here, anywhere = results.visits_of(placement), results.visits
    if not here:
        known = [visit["load_s"] + visit["warm_s"] for visit in anywhere]
        return max(known) + UNKNOWN_VISIT_S if known else 0.0
    last, modes = here[-1], (PLAIN, *plan.modes)
    took = [
        sum(round_.runs[mode].took_s for mode in modes if mode in round_.runs)
        for round_ in results.rounds_of(placement)[-4:]
    ]
    by_warm_up = last["tokens"] * sum(last["token_s"].get(mode, 0.0) for mode in modes)
    return float(last["load_s"] + last["warm_s"] + max(took, default=by_warm_up))


def _visit(
    plan: Plan,
    placement: Placement,
    store: Store,
    beside: Beside,
    command: str,
    budget: Budget,
    part_s: float | None,
    interrupts: Interrupts,
) -> None:
    """part_s: most of a first visit."""
    before = store.results.visits_of(placement.name)
    begun = budget.clock()
    every = [one for asked in plan.kinds.values() for one in asked]
    tokens = tokens_of(placement, before)
    say(f"{placement.name}: loading")
    with VisitProcess(placement, store.cache_of(placement.name), interrupts) as process:
        process.say(
            {
                "choice": choice_as_json(placement.choice),
                "modes": [OFF, PLAIN, *(mode for mode in plan.modes if mode != OFF)],
                "prompts": [[one.kind, one.prompt.number, one.prompt.messages] for one in every],
                "room": tokens or MOST_TOKENS,
            }
        )
        loaded = process.heard()
        tokens = tokens or chosen_tokens(loaded["token_s"])
        visit = len(before)
        _keep_profile(store.profile_path(placement.name), placement, loaded)
        store.add(
            {
                "record": "visit",
                "placement": placement.name,
                "visit": visit,
                "settings": settings_of(placement),
                "tokens": tokens,
                "began": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": machine_name(),
                "command": command,
                **{key: value for key, value in loaded.items() if key != "profile"},
            }
        )
        ready = budget.clock()
        rounds = 0
        while (cell := _next_cell(plan, store.results, placement.name)) is not None:
            asked, index, modes = cell
            now = budget.clock()
            expected = sum(
                _run_s(store.results, placement.name, mode, tokens, loaded) for mode in modes
            )
            if before:
                enough = now - ready > LOADS_OF_A_VISIT * (ready - begun)
            else:
                more = part_s is not None and now - begun + expected <= part_s
                enough = rounds >= len(plan.kinds) and not more
            if enough or not budget.has(expected):
                break
            one = asked[index]
            process.say({"prompt": every.index(one), "modes": modes, "tokens": tokens})
            about_it = {
                "placement": placement.name,
                "visit": visit,
                "kind": one.kind,
                "prompt": one.key,
                "id": one.prompt.id,
                "of": len(modes),
            }
            for _ in modes:
                store.add({**process.heard(), **about_it})
            rounds += 1
    played = f"{rounds} round{'' if rounds == 1 else 's'}"
    say(f"{placement.name}: {played} in {budget.clock() - begun:.0f} s")
    measure_beside(beside, placement, plan, store, budget, interrupts)


def _run_s(
    results: Results, placement: str, mode: str, tokens: int, loaded: Mapping[str, Any]
) -> float:
    """What a run is expected to take: as before, else by the warm-up."""
    took = [
        round_.runs[mode].took_s for round_ in results.rounds_of(placement) if mode in round_.runs
    ]
    return max(took[-4:]) if took else tokens * float(loaded["token_s"][mode])


def tokens_of(placement: Placement, visits: Sequence[Record]) -> int | None:
    """Tokens an answer: as asked, as in earlier visits, or not known yet."""
    return placement.tokens or (int(visits[-1]["tokens"]) if visits else None)


def settings_of(placement: Placement) -> Record:
    """What results of one placement must agree in. Raises AppError for a missing model."""
    from specfit.models import bundled_head, bundled_model

    choice = placement.choice
    model = choice.model or bundled_model()
    head = choice.model_draft or (bundled_head() if choice.model is None else None)
    options = choice_as_json(choice)
    del options["model"], options["model_draft"]
    return {
        "model": _named(model),
        "head": None if head is None else _named(head),
        "options": options,
        "environment": dict(placement.environment),
        "segment_s": SEGMENT_S,
    }


def _named(path: Path) -> list[Any]:
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        return [path.name, file.stat().st_size]
    except OSError as error:
        raise AppError(f"{file}: {error.strerror}") from error


def check_same(plan: Plan, results: Results) -> None:
    """Raises AppError if a placement was measured under this name as something else, or anything
    when modes answered in one go."""
    if any("segment_s" not in visit["settings"] for visit in results.visits):
        raise AppError(
            "the folder has results of an earlier specfit-report, whose modes did not take turns "
            "within an answer; name another folder"
        )
    for placement in plan.placements:
        for visit in results.visits_of(placement.name):
            now, then = _flat(settings_of(placement)), _flat(visit["settings"])
            for part in dict.fromkeys([*then, *now]):
                if now.get(part) != then.get(part):
                    raise AppError(
                        f"the folder has results of {placement.name} with another {part} "
                        f"({_said(then.get(part))}, now {_said(now.get(part))}); name another "
                        "folder or another placement"
                    )
            if placement.tokens not in (None, visit["tokens"]):
                raise AppError(
                    f"the folder has results of {placement.name} with -n {visit['tokens']}; name "
                    "another folder or another placement"
                )


def _flat(settings: Record) -> Record:
    """Options and environment as settings of their own."""
    nested = {key for key, value in settings.items() if isinstance(value, dict)}
    parts = [settings[key].items() for key in sorted(nested)]
    own = [(key, value) for key, value in settings.items() if key not in nested]
    return dict(own + [item for part in parts for item in part])


def _said(value: object) -> str:
    """A setting in words; of a file its name and size."""
    if isinstance(value, list):
        return " of ".join([str(value[0]), *(f"{size:,} bytes" for size in value[1:])])
    return "none" if value is None else str(value)


def _keep_profile(path: Path, placement: Placement, loaded: Mapping[str, Any]) -> None:
    """Writes the costs that were calibrated, once: they have to be those of one moment."""
    if path.exists():
        return
    about_it = {
        "name": placement.name,
        "what": placement.options,
        "model": loaded["description"],
        "machine": machine_name(),
    }
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**about_it, **loaded["profile"]}, indent=1) + "\n")
    part.replace(path)
