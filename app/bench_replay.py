"""specfit-bench --replay: all modes on a recorded trace, under every cost profile, or with caches
of experts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specfit.backend.profiles import load_profile, shipped_profiles
from specfit.backend.trace_file import read_trace
from specfit.planner import CycleCost, Spec
from specfit.planner.lab import MAX_ROWS, ORACLE, PARTS, STATIC, Lab
from specfit.planner.replay import Cache
from specfit.planner.tree import DRAFTERS, HEAD

from .bench_audit import Predictions
from .bench_jobs import mode_and_lines
from .bench_replay_result import ProfileReplay, Replayed, TraceReplay, summarise_replay
from .bench_residency import cached_machine, hits_of_trace, name_of, rule_of
from .bench_result import baseline_index
from .entry import AppError

MODES = (
    *("off", "chain:1", "chain:2", "chain:3", "chain:4", "eagle3:31", "eagle3:60"),
    *("count", "specfit", "specfit:ratio", ORACLE, STATIC),
)
# What lookups alone cannot have.
OF_THE_HEAD = (ORACLE, STATIC)
SPECFIT = "specfit"


@dataclass(frozen=True)
class Job:
    """One replay. without: a part of `mode` to switch off, one of PARTS; empty: none."""

    profile: str
    mode: str
    without: str = ""


def parse_replay_modes(names: Sequence[str] | None, drafters: Sequence[str]) -> tuple[str, ...]:
    """The modes of these names, by default all that these drafters allow; raises AppError for one
    that is unknown, or that they do not allow."""
    has_head = DRAFTERS[HEAD] in drafters
    for name in names or ():
        mode, lines = mode_and_lines(name)
        try:
            if mode not in OF_THE_HEAD:
                Spec.parse(mode)
        except ValueError as error:
            raise AppError(f"{error}; a replay also has {ORACLE} and {STATIC}") from error
        if not 1 <= lines <= MAX_ROWS // 2 or (lines > 1 and mode in OF_THE_HEAD):
            raise AppError(
                f"{name!r}: write MODE@N for N texts at a time, N from 1 to {MAX_ROWS // 2}; "
                f"{ORACLE} and {STATIC} know one"
            )
        if mode in OF_THE_HEAD and not has_head:
            raise AppError(
                f"{mode} is made of what the head drafts; --drafter {','.join(drafters)} leaves "
                "that out"
            )
    if names is None:
        return tuple(mode for mode in MODES if has_head or mode not in OF_THE_HEAD)
    return tuple(names)


def title_of(path: Path, found: TraceReplay) -> str:
    """What was replayed, in one line."""
    names = ", ".join(profile.profile for profile in found.profiles)
    return (
        f"{path}: {found.steps} tokens of {found.texts} answers | "
        f"{found.about.get('model', 'a model not named')} | drafts by "
        f"{' and '.join(found.drafters)} | costs of {names}"
    )


@dataclass(frozen=True)
class Machine:
    """What modes are replayed under. cache: of experts; None: there is none."""

    cost: CycleCost
    cache: Cache | None = None


def replay_trace(
    path: Path,
    modes: Sequence[str],
    profile: str | None,
    *,
    ablate: bool,
    shares: Sequence[float] = (),
    drafters: tuple[str, ...] = DRAFTERS,
) -> TraceReplay:
    """Every mode under every profile (or the one named), on all cores; or, if `shares` are given,
    on a machine whose cache holds each of these shares of all experts.

    drafters: to draft by; a trace has all of them.

    Raises SpecfitError or AppError for a file that is no trace or no profile, or has no experts.
    """
    names = shipped_profiles() if profile is None else [profile]
    for name in names:  # before the trace is read, which takes seconds
        load_profile(name, np.ones(1), MAX_ROWS)
    trace = read_trace(path)
    steps = sum(len(text.steps) for text in trace.texts)
    if not steps:
        raise AppError(f"{path} holds no recorded step")
    lab = Lab(trace)
    hits = hits_of_trace(trace, shares) if shares else []
    if shares:
        names = [name_of(share) for share in shares]
        cost = cached_machine(lab.layer_weights, MAX_ROWS)
        rules = [rule_of(share, cost, trace.n_experts) for share in shares]
        machines = {
            name: Machine(cost, lab.cache(rule)) for name, rule in zip(names, rules, strict=True)
        }
    else:
        machines = {
            name: Machine(load_profile(name, lab.layer_weights, MAX_ROWS)) for name in names
        }
    jobs = [Job(name, mode) for name in names for mode in modes]
    if ablate:
        jobs += [Job(name, SPECFIT, part) for name in names for part in PARTS]
        jobs += [Job(name, SPECFIT) for name in names if SPECFIT not in modes]
    found = _all_done(Setting(lab, machines, drafters), jobs)
    return TraceReplay(
        about=trace.about,
        texts=len(trace.texts),
        steps=steps,
        drafters=drafters,
        baseline=modes[baseline_index(modes)],
        profiles=tuple(_of_profile(name, modes, found, ablate=ablate) for name in names),
        hits=tuple(hits),
    )


def _of_profile(
    name: str,
    modes: Sequence[str],
    found: dict[Job, tuple[Replayed, Predictions]],
    *,
    ablate: bool,
) -> ProfileReplay:
    def against(job: Job, other: Job) -> Replayed:
        mine = found[job][0]
        return replace(mine, ratio=mine.tokens_per_second / found[other][0].tokens_per_second)

    baseline, whole = Job(name, modes[baseline_index(modes)]), Job(name, SPECFIT)
    return ProfileReplay(
        profile=name,
        modes=tuple(against(Job(name, mode), baseline) for mode in modes),
        parts=tuple(against(replace(whole, without=part), whole) for part in PARTS)
        if ablate
        else (),
        predictions={mode: found[Job(name, mode)][1] for mode in modes},
    )


@dataclass(frozen=True)
class Setting:
    """What all jobs have in common. machines: by name."""

    lab: Lab
    machines: dict[str, Machine]
    drafters: tuple[str, ...]


# Set in every worker once, instead of being sent along with every job.
_shared: Setting | None = None


def _all_done(setting: Setting, jobs: Sequence[Job]) -> dict[Job, tuple[Replayed, Predictions]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    # What plans most takes longest: it begins first, so that all cores end together.
    ordered = sorted(jobs, key=lambda job: job.mode not in (ORACLE, STATIC, SPECFIT))
    # Forked workers have the trace for nothing; macOS's system libraries do not survive a fork.
    kind = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    n = min(_cores(), len(ordered))
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = sys.stderr.isatty()
    found = {}
    with (
        kind.Pool(n, _begin_worker, (setting,)) as pool,
        Progress(*columns, console=Console(stderr=True), disable=not shown) as bar,
    ):
        for job, result in bar.track(pool.imap_unordered(_done, ordered), total=len(ordered)):
            found[job] = result
    return found


def _begin_worker(setting: Setting) -> None:
    global _shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _shared = setting


def _done(job: Job) -> tuple[Job, tuple[Replayed, Predictions]]:
    assert _shared is not None
    lab, drafters, machine = _shared.lab, _shared.drafters, _shared.machines[job.profile]
    cost, cache = machine.cost, machine.cache
    # The best shape for what lies in the cache when the text begins.
    resident = None if cache is None else cache.begun.sets
    static = job.mode == STATIC
    shape = lab.static_shape(replace(cost, resident=resident)) if static else None
    if job.without:
        cycles = lab.take_without(job.without, cost, cache, drafters)
    elif shape is not None:
        cycles = lab.take_fixed(shape, cost, cache)
    else:
        mode, lines = mode_and_lines(job.mode)
        cycles = lab.take(mode, cost, lines=lines, cache=cache, drafters=drafters)
    result = summarise_replay(job.without or job.mode, cycles, len(lab.layer_weights))
    predictions = Predictions.of_replayed(cycles, len(lab.layer_weights))
    return job, (replace(result, shape=shape), predictions)


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
