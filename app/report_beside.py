"""What specfit-report runs after a visit's rounds: llama.cpp's own programs, each in a process of
its own, with the same model placed alike, as far as they can (`report_programs`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .entry import AppError
from .interrupts import Interrupts
from .options import ModelChoice
from .report_plain import llama_bench
from .report_plan import OFF, Asked, Budget, Placement, Plan
from .report_programs import Placed
from .report_server import CHAINS, Server, answers, mode_of
from .report_store import Results, Round, Store, record_of

# Rounds whose prompts tell behind how many tokens llama-bench is timed.
ROUNDS_OF_DEPTH = 2
# Prompts of each kind that llama-server answers, of those that were played.
SERVED_PROMPTS = 3
# What loading a model and answering takes a server, in loads and answers of ours.
SERVER_LOADS, SERVER_ANSWERS = 1.5, 2.0
CTX_STEP = 256


@dataclass(frozen=True)
class Beside:
    """Paths of llama.cpp's programs, the server's with the draft head as GGUF; None: not asked
    for."""

    bench: Path | None = None
    server: tuple[Path, Path] | None = None


def gguf_head(choice: ModelChoice) -> Path:
    """The draft head as llama.cpp's programs take it, converted if it is not GGUF.

    Raises AppError if llama.cpp cannot compute it, ModelFileError or SpecfitError if it cannot be
    converted.
    """
    from specfit.backend.heads import converted
    from specfit.models import bundled_head, bundled_model
    from specfit.models.convert_head import Inexpressible
    from specfit.models.gguf_info import read_gguf_info

    head = choice.model_draft or bundled_head()
    if head.suffix == ".gguf":
        return head
    try:
        return converted(head, read_gguf_info(choice.model or bundled_model())).path
    except Inexpressible as error:
        raise AppError(f"{str(error).rstrip('.')}; leave --llama-server out") from error


def measure_beside(
    beside: Beside,
    placement: Placement,
    plan: Plan,
    store: Store,
    budget: Budget,
    interrupts: Interrupts,
) -> None:
    """After a visit. Raises AppError if one fails, KeyboardInterrupt on Ctrl-C."""
    if beside.bench is not None:
        _bench(beside.bench, placement, store, budget, interrupts)
    serve(beside, placement, plan, store, budget, interrupts)


def _bench(
    path: Path, placement: Placement, store: Store, budget: Budget, interrupts: Interrupts
) -> None:
    """llama-bench, once a visit."""
    results = store.results
    here = results.visits_of(placement.name)[-1]
    earlier = [one["took_s"] for one in results.benches if one["placement"] == placement.name]
    expected = here["load_s"] + 4 * here["tokens"] * here["token_s"][OFF]
    # The same rounds in every visit, so that llama-bench is always asked the same.
    runs = [round_.runs[OFF] for round_ in results.rounds_of(placement.name)[:ROUNDS_OF_DEPTH]]
    if not runs or not budget.has(max(earlier, default=expected)):
        return
    found = llama_bench(
        path,
        Placed.of(here, placement),
        tokens=here["tokens"],
        depth=round(sum(run.report.prompt_tokens for run in runs) / len(runs)),
        interrupts=interrupts,
    )
    about = {"record": "bench", "placement": placement.name, "visit": here["visit"]}
    store.add({**about, **vars(found)})


def serve(
    beside: Beside,
    placement: Placement,
    plan: Plan,
    store: Store,
    budget: Budget,
    interrupts: Interrupts,
) -> None:
    """llama-server, if asked for, once for every length of its chains, as far as time allows, of a
    placement that was visited. Raises AppError if it fails, KeyboardInterrupt on Ctrl-C."""
    visits = store.results.visits_of(placement.name)
    if beside.server is None or not visits:
        return
    (path, head), here = beside.server, visits[-1]
    for chain in CHAINS:
        waiting = unserved(plan, store.results, placement.name, chain)
        rounds = [round_ for _, round_ in waiting]
        usual = [round_.runs[OFF].whole_s for round_ in rounds]
        expected = SERVER_LOADS * here["load_s"] + SERVER_ANSWERS * sum(usual)
        if not waiting or not budget.has(expected):
            continue
        longest = max(round_.runs[OFF].report.prompt_tokens for round_ in rounds)
        ctx = -(-(longest + here["tokens"] + max(CHAINS)) // CTX_STEP) * CTX_STEP
        server = Server(path, Placed.of(here, placement), head, ctx)
        asked = [one for one, _ in waiting]
        found = list(answers(server, chain, asked, here["tokens"], interrupts, usual_s=max(usual)))
        for one, timed in zip(asked, found, strict=True):
            store.add(
                {
                    **record_of(timed),
                    "record": "server",
                    "placement": placement.name,
                    "kind": one.kind,
                    "prompt": one.key,
                    "command": server.command(chain),
                }
            )


def unserved(plan: Plan, results: Results, placement: str, chain: int) -> list[tuple[Asked, Round]]:
    """What llama-server is to answer with chains of that length: the first prompts of every kind
    that were played, and the rounds that the answers will join."""
    return [
        (one, round_)
        for kind, asked in plan.kinds.items()
        for round_ in list(results.first_rounds(placement, kind).values())[:SERVED_PROMPTS]
        for one in asked
        if one.key == round_.prompt and mode_of(chain) not in round_.runs
    ]
