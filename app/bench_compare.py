"""The comparison of modes on a loaded model: what is printed and written of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bench_audit import Audit, Predictions, audit, fit_of_verify_ms
from .bench_result import ModeResult, Run, baseline_index, summarise

if TYPE_CHECKING:
    from specfit.backend import CycleReport, Engine, Sampling, Spec

    from .options import ModelChoice

# Modes that plan choose the cycles that they like; only these meet all sorts.
FORCED = ("chain", "eagle3")


@dataclass(frozen=True)
class Comparison:
    """about: what was compared. predictions: of each drafting mode, by name. audits: the same, and
    over all FORCED modes together as "forced"."""

    about: dict[str, Any]
    baseline: str
    results: list[ModeResult]
    predictions: dict[str, Predictions]
    audits: dict[str, Audit]

    def as_json(self) -> dict[str, Any]:
        return {
            "modes": [result.as_json() for result in self.results],
            "audit": [{"cycles_of": name} | a.as_json() for name, a in self.audits.items()],
            **self.about,
            "baseline": self.baseline,
        }


def compared(specs: Sequence[Spec], runs: Sequence[Run], about_it: dict[str, Any]) -> Comparison:
    names = [str(spec) for spec in specs]
    cycles = _cycles_by_mode(specs, runs)
    predictions = {name: Predictions.of_reports(found) for name, found in cycles.items()}
    forced = [str(spec) for spec in specs if spec.mode in FORCED]
    audits = {name: audit(found) for name, found in predictions.items()}
    if forced:
        all_cycles = [cycle for name in forced for cycle in cycles[name]]
        audits["forced"] = audit(Predictions.of_reports(all_cycles), fit_of_verify_ms(all_cycles))
    return Comparison(
        about=about_it,
        baseline=names[baseline_index(names)],
        results=summarise(names, runs),
        predictions=predictions,
        audits=audits,
    )


def _cycles_by_mode(specs: Sequence[Spec], runs: Sequence[Run]) -> dict[str, list[CycleReport]]:
    """Cycles that drafted, of every mode that can."""
    return {
        str(spec): [
            cycle for run in runs if run.mode == index for cycle in run.cycles if cycle.drafted
        ]
        for index, spec in enumerate(specs)
        if spec.drafts
    }


def metadata(
    engine: Engine,
    choice: ModelChoice,
    sampling: Sampling,
    source: Path,
    prompts: int,
    predict: int,
    repeat: int,
) -> dict[str, Any]:
    """What is compared."""
    from .machine import machine_name

    return {
        "machine": machine_name(),
        "model": engine.description,
        "model_file": None if choice.model is None else str(choice.model),
        "cost_profile": choice.cost_profile,
        "sampling": asdict(sampling),
        "prompts_file": str(source),
        "prompts": prompts,
        "predict": predict,
        "repeat": repeat,
    }


def one_line(about_it: dict[str, Any]) -> str:
    sampling = about_it["sampling"]
    costs = "planned by this machine's costs"
    if about_it["cost_profile"]:
        costs = f"planned by the costs of {about_it['cost_profile']}, measured on this machine"
    return (
        f"{about_it['machine']} | {about_it['model']} | {about_it['prompts']} x "
        f"{about_it['prompts_file']}, -n {about_it['predict']}, repeat {about_it['repeat']} | "
        f"temperature {sampling['temp']:g}, seed {sampling['seed']} | {costs}"
    )
