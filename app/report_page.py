"""The page that specfit-report writes: Markdown tables of what a folder of results holds, and
sentences that say no more than they do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .bench_audit import Audit, Estimate
from .report_plan import BEGINS, OFF, PLAIN
from .report_round import SEGMENT_S, SETTLING, TURNS
from .report_stats import predicted, ratio, runs_of, speed, times
from .report_store import Record, Results, Round
from .report_words import SERVED, against_others, best_of, chains_of, modes_of, verdicts

# What the planner is asked to reach: relative errors of predictions.
LIMITS = {"cycle_ms": 0.05, "one_cycle_ms": 0.12, "committed": 0.03, "union": 0.05}
# Columns about the mean cycle, and the means that they show.
CYCLE = {
    "rows": "rows_per_cycle",
    "padding": "padding",
    "union": "union_per_layer",
    "ms": "measured_cycle_ms",
    "verify": "verify_ms",
    "draft": "draft_ms",
    "plan": "plan_ms",
    "look at experts": "observe_ms",
}
PRICE_ROWS = (1, 2, 3, 4, 8, 16, 31, 32, 64)


def page(
    results: Results, profiles: Mapping[str, Record], about_it: str, picture: str | None
) -> str:
    """The whole page. profiles: measured costs, by placement. about_it: the user's own words on the
    model. picture: name of the plot beside the page."""
    placements = list(dict.fromkeys(visit["placement"] for visit in results.visits))
    parts = [
        f"{BEGINS} from its results; edit nothing here.\n",
        _what(results, placements, about_it),
    ]
    if any(results.rounds_of(name) for name in placements):
        parts += [
            _compared(results, placements),
            f"![Predictions against what was measured, and speeds]({picture})\n" if picture else "",
            *(_placement(results, name) for name in placements if results.rounds_of(name)),
            _predictions(results, placements),
        ]
    parts += [_prices(placements, profiles), _replays(results), _commands(results)]
    return "\n".join(part for part in parts if part)


def _what(results: Results, placements: Sequence[str], about_it: str) -> str:
    lines = ["## What was measured\n"]
    if about_it:
        lines.append(f"```\n{about_it.strip()}\n```\n")
    rows = []
    shared = _shared_start([visit["description"] for visit in results.visits])
    for name in placements:
        visits = results.visits_of(name)
        last = visits[-1]
        rounds = results.rounds_of(name)
        kinds = {kind: len(results.rounds_of(name, kind)) for kind in _kinds(rounds)}
        set_up = [f"{key}={value}" for key, value in last["settings"]["environment"].items()]
        rows.append(
            [
                f"`{name}`",
                " ".join([*set_up, last["description"].removeprefix(shared)]),
                str(last["tokens"]),
                ", ".join(f"{n} {kind}" for kind, n in kinds.items()) or "none",
                str(len(visits)),
                ", ".join(sorted({visit["began"][:10] for visit in visits})),
            ]
        )
    if results.visits:
        model, size = results.visits[-1]["settings"]["model"]
        machines = list(
            dict.fromkeys(
                " + ".join(filter(None, (visit["machine"], visit.get("gpu"))))
                for visit in results.visits
            )
        )
        lines.append(
            f"`{model}` ({shared.rstrip(', ')}), {size / 1e9:.2f} GB, on {'; '.join(machines)}.\n"
        )
        heads = ["placement", "what", "tokens an answer", "prompts answered", "loads", "date"]
        lines.append(_table(heads, rows, left=2))
        lines.append(
            "Temperature 0. Every prompt is processed once and answered under all modes, in one "
            f"process. Within the answer modes take turns of {SEGMENT_S:g} s or 1/{TURNS} of its "
            f"tokens, each behind {SETTLING} decodes like its last one that do not count, in an "
            "order in which each mode follows each other one equally often; their keys and values "
            "share a context, which is the larger by the others' answers, and a cache of experts, "
            "if there is one, holds what all of them have used. "
            f"`{PLAIN}`, one of the modes, is a bare loop of llama_decode and argmax on the same "
            "weights, in a context of its own. Speeds are all tokens over all seconds, without the "
            "prompt and the first token; kinds of prompts weigh alike. ± is one standard error, by "
            "leaving out one prompt at a time. A mode sits out once its ratio to `off` is known to "
            "0.03, so a ratio is of the rounds that both modes played.\n"
        )
    return "\n".join(lines)


def _shared_start(descriptions: Sequence[str]) -> str:
    """The parts, each followed by a comma, that all descriptions begin with; never the whole."""
    split = [description.split(", ") for description in descriptions]
    shared = []
    for parts in zip(*(parts[:-1] for parts in split), strict=False):
        if len(set(parts)) > 1 or parts[0].startswith("on the"):
            break
        shared.append(f"{parts[0]}, ")
    return "".join(shared)


def _compared(results: Results, placements: Sequence[str]) -> str:
    """specfit against the others, all kinds together and each alone."""
    rows = []
    for name in placements:
        rounds = results.rounds_of(name)
        for kind in (None, *_kinds(rounds)):
            if kind is not None and len(_kinds(rounds)) == 1:
                continue
            of_kind = results.rounds_of(name, kind)
            others = against_others(of_kind, results.benches, name)
            rows.append([f"`{name}`", kind or "all", *(_named(*other) for other in others)])
    heads = [
        *("placement", "prompts", "best other mode", "best chain", "best of llama-server"),
        *("`eagle3:60`", "`eagle3:31`", "`off`", f"`{PLAIN}`", "llama-bench"),
    ]
    sentences = [
        sentence for name in placements for sentence in verdicts(name, results.rounds_of(name))
    ]
    return "\n".join(
        [
            "## specfit against the others\n",
            "Speed of `specfit` as a multiple of the other's. The best is chosen by the same "
            "figures: of modes that are alike, the luckiest.\n",
            _table(heads, rows, left=2),
            *(f"- {sentence}" for sentence in sentences),
            "",
        ]
    )


def _placement(results: Results, name: str) -> str:
    rounds = results.rounds_of(name)
    kinds = _kinds(rounds)
    heads = ["mode"]
    for kind in kinds:
        heads += [f"{kind}: tokens/s", "against `off`", "accepted length", "answers"]
    speeds, cycles = [], []
    for mode in modes_of(rounds):
        row = [f"`{mode}`"]
        for kind in kinds:
            of_kind = results.rounds_of(name, kind)
            means = cycle_means(of_kind, mode)
            row += [
                _number(speed(of_kind, mode), ".4g"),
                "1" if mode == OFF else _ratio(ratio(of_kind, mode, OFF)),
                _number(means.get("mean_acceptance_length"), ".2f"),
                str(times(of_kind, mode)),
            ]
        speeds.append(row)
        if mode in SERVED:
            continue
        means = cycle_means(rounds, mode)
        cycles.append(
            [
                f"`{mode}`",
                *(_number(means.get(name) or None, ".3g") for name in CYCLE.values()),
                _number(_same_text(rounds, mode), ".0%"),
            ]
        )
    benches = [bench for bench in results.benches if bench["placement"] == name]
    beside = []
    if benches:
        speeds_there = ", ".join(f"{one['tokens_per_second']:.4g}" for one in benches)
        beside = [f"llama-bench: {speeds_there} tokens/s (`{benches[-1]['command']}`)."]
    served = [one for one in results.servers if one["placement"] == name]
    if served:
        beside.append(
            "`llama-server:N` is llama.cpp's llama-server with the same head and "
            "`--spec-draft-n-max N` (0: without it), each in a process of its own after the "
            f"rounds, so at another time than they (`{served[-1]['command']}`)."
        )
    chain = best_of(rounds, chains_of(rounds))
    if chain:
        beside.insert(0, f"Best chain: `{chain}`.")
    return "\n".join(
        [
            f"## {name}\n",
            _table(heads, speeds),
            *(f"{line}\n" for line in beside),
            "The mean cycle, and the share of answers that are those of `off`:\n",
            _table(["mode", *CYCLE, "same text"], cycles),
        ]
    )


def _predictions(results: Results, placements: Sequence[str]) -> str:
    """How good predictions of drafted cycles were: by mode over all cells, and by placement."""
    modes = [mode for mode in modes_of(results.rounds) if mode not in (OFF, PLAIN, *SERVED)]
    cells = [
        results.rounds_of(name, kind)
        for name in placements
        for kind in _kinds(results.rounds_of(name))
    ]
    pooled = {mode: predicted([runs_of(cell, mode) for cell in cells]) for mode in modes}
    heads = ["mode", "cycles", "mean cycle time", "one cycle's error", "committed", "union"]
    rows = [
        [f"`{mode}`", str(one.cycles), *(_off(one, part) for part in LIMITS)]
        for mode, one in pooled.items()
        if one.cycles
    ]
    if not rows:
        return ""
    by_place = []
    for mode in modes:
        places = [
            predicted(
                [runs_of(results.rounds_of(name, kind), mode) for kind in _kinds(results.rounds)]
            )
            for name in placements
        ]
        if any(one.cycles for one in places):
            by_place.append([f"`{mode}`", *(_off(one, "cycle_ms") for one in places)])
    return "\n".join(
        [
            "## Predictions\n",
            "Predicted over measured, less 1, of cycles that drafted, ± two standard errors (by "
            "answer). **Bold**: further off than "
            f"{LIMITS['cycle_ms']:.0%} (cycle time), {LIMITS['committed']:.0%} (committed tokens), "
            f"{LIMITS['union']:.0%} (union) and than two standard errors; one cycle's error is the "
            f"mean absolute one, and bold above {LIMITS['one_cycle_ms']:.0%}.\n",
            _table(heads, rows),
            "Mean cycle time by placement:\n",
            _table(["mode", *(f"`{name}`" for name in placements)], by_place),
        ]
    )


def _prices(placements: Sequence[str], profiles: Mapping[str, Record]) -> str:
    """What decodes cost where, as calibration found it."""
    rows = []
    for name in placements:
        profile = profiles.get(name)
        if profile is None:
            continue
        widest: dict[int, tuple[float, float]] = {}
        for point in profile["points"]:
            known = widest.get(point["rows"], (-1.0, 0.0))
            widest[point["rows"]] = max(known, (point["union"], point["ms"]))
        cells = [
            f"{widest[rows][1]:.3g} ({widest[rows][0]:.0f})" if rows in widest else "–"
            for rows in PRICE_ROWS
        ]
        cells += [_number(profile.get(part), ".2g") for part in ("switch_ms", "settle_ms")]
        rows.append([f"`{name}`", *cells, f"{profile['draft_level_ms']:.2g}"])
    if not rows:
        return ""
    return "\n".join(
        [
            "## What decodes cost\n",
            "Milliseconds of a decode of so many different tokens (their union of experts a "
            "layer), as calibration measured it; what the first and the second decode of another "
            "number of rows take more; and of drafting a level.\n",
            _table(
                [
                    "placement",
                    *("1 row" if n == 1 else f"{n} rows" for n in PRICE_ROWS),
                    "first",
                    "second",
                    "draft level",
                ],
                rows,
            ),
        ]
    )


def _replays(results: Results) -> str:
    lines = []
    latest = {(one["trace"], one["profile"]): one for one in results.replays}
    for trace in dict.fromkeys(trace for trace, _ in latest):
        profiles = [profile for name, profile in latest if name == trace]
        columns = [latest[trace, profile]["modes"] for profile in profiles]
        speeds = [{mode["mode"]: mode for mode in column} for column in columns]
        one = latest[trace, profiles[0]]
        rows = [
            [f"`{mode}`", *(_replayed(by_mode.get(mode), mode) for by_mode in speeds)]
            for mode in dict.fromkeys(mode for by_mode in speeds for mode in by_mode)
        ]
        lines += [
            f"### {trace}\n",
            f"{one['steps']} tokens of {one['texts']} answers, temperature {one['temp']:g}.\n",
            _table(["mode", *(f"`{profile}`" for profile in profiles)], rows),
        ]
    if not lines:
        return ""
    return "\n".join(
        [
            "## By replay\n",
            "Recorded answers under the costs measured in each placement: speed against `off`, of "
            "`off` tokens/s. `static` is the best fixed tree in hindsight, `oracle` knows the "
            "experts and the target's probabilities.\n",
            *lines,
        ]
    )


def _replayed(mode: Mapping[str, Any] | None, name: str) -> str:
    if mode is None:
        return "–"
    return f"{mode['tokens_per_second']:.4g}/s" if name == OFF else f"{mode['ratio']:.3f}"


def _commands(results: Results) -> str:
    commands = [*results.visits, *results.replays]
    seen = dict.fromkeys(one["command"] for one in commands)
    return "\n".join(["## The commands\n", "```sh", *seen, "```\n"]) if seen else ""


def cycle_means(rounds: Sequence[Round], mode: str) -> dict[str, float]:
    """Means per cycle, over all cycles of the mode; empty if there were none."""
    from dataclasses import asdict

    from .bench_result import over_all_cycles

    reports = [run.report for run in runs_of(rounds, mode)]
    return asdict(over_all_cycles(reports)) if any(report.cycles for report in reports) else {}


def _same_text(rounds: Sequence[Round], mode: str) -> float | None:
    pairs = [(r.runs[mode], r.runs[OFF]) for r in rounds if mode in r.runs and OFF in r.runs]
    same = [mine.report.text == other.report.text for mine, other in pairs]
    return sum(same) / len(same) if same else None


def _kinds(rounds: Sequence[Round]) -> list[str]:
    return list(dict.fromkeys(round_.kind for round_ in rounds))


def _off(one: Audit, part: str) -> str:
    found: Estimate | None = getattr(one, part)
    if found is None:
        return "–"
    two = 2 * found.error
    limit = LIMITS[part]
    if part == "one_cycle_ms":
        text = f"{found.value:.1%}"
        return f"**{text}**" if found.value > limit else text
    text = f"{found.value:+.1%} ± {two:.1%}"
    return f"**{text}**" if abs(found.value) > max(limit, two) else text


def _named(name: str | None, found: Estimate | None) -> str:
    return f"`{name}`: {_ratio(found)}" if name else _ratio(found)


def _ratio(found: Estimate | None) -> str:
    if found is None:
        return "–"
    error = f"{found.error:.2g}" if found.error < float("inf") else "?"
    return f"{found.value:.3g} ± {error}"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """left: so many columns of text, which numbers follow."""
    rules = ["---" if column < left else "--:" for column in range(len(heads))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, rules, *rows))


def read_profiles(folder: Path) -> dict[str, Record]:
    """By placement; what is no profile is left out."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
    return found
