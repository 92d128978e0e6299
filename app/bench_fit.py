"""specfit-bench --fit: what a trace teaches about its pair of models, kept for later runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfit.backend.memory import keep, recall
from specfit.backend.trace_file import read_trace
from specfit.models.gguf_info import read_gguf_info
from specfit.planner import Beliefs
from specfit.planner.forecast_report import SignalQuality, forecast_quality
from specfit.planner.lab import Lab
from specfit.planner.replay import accepted_nodes
from specfit.planner.trace import Trace, TracedText

from .entry import AppError

if TYPE_CHECKING:
    from rich.table import Table

# Of the answers, one in so many is kept from training and tells how good the forecast is.
HELD_OUT = 4


def fit(path: Path, model: Path, memory: Path) -> list[SignalQuality]:
    """Learns from the trace in `path`, on top of what `memory` knows, and keeps it there.

    model: the GGUF that the trace should be of.

    Returns how good expert forecasts are on answers that were not learned from, each signal alone
    and all mixed. Raises AppError if the trace is too short or of another model.
    """
    trace = read_trace(path)
    if len(trace.texts) < HELD_OUT or not trace.n_experts:
        raise AppError(
            f"{path}: training needs at least {HELD_OUT} answers of a model with experts"
        )
    info = read_gguf_info(model)
    shape = (info.n_layers, info.n_experts, info.n_experts_used)
    if shape != (trace.n_layers, trace.n_experts, trace.n_used):
        raise AppError(f"{path} was recorded from another model than {model.name}")
    held_out = trace.texts[::HELD_OUT]
    rest = [text for i, text in enumerate(trace.texts) if i % HELD_OUT]
    lab = Lab(trace)
    judged = lab.beliefs()
    _learn(judged, rest, trace)
    assert judged.forecast is not None
    quality = forecast_quality(held_out, judged.forecast)

    beliefs = lab.beliefs()
    if memory.exists() and not recall(beliefs, memory):
        beliefs = lab.beliefs()
    _learn(beliefs, trace.texts, trace)
    keep(beliefs, memory)
    return quality


def _learn(beliefs: Beliefs, texts: Sequence[TracedText], trace: Trace) -> None:
    """Everything that the texts tell: the probe, and drafts as far as they were accepted."""
    assert beliefs.forecast is not None
    beliefs.forecast.train(texts)
    sampling = trace.about.get("sampling")
    beliefs.acceptance.heat(float(sampling["temp"]) if isinstance(sampling, dict) else 1.0)
    for text in texts:
        for at, step in enumerate(text.steps):
            path = accepted_nodes(step.tree, text.steps[at:])
            beliefs.acceptance.learn(step.tree, path)
            first = step.tree.subtree(step.tree.depths <= 1)
            beliefs.outlook.learn(first, beliefs.acceptance.conditional(first))


def quality_table(quality: Sequence[SignalQuality]) -> Table:
    """One row a signal."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("experts by")
    for heading in ("Jaccard", "recall@k", "union of 2 rows", "of 4", "of 8"):
        table.add_column(heading, justify="right")
    for row in quality:
        biases = [f"{bias:+.1%}" for bias in row.bias]
        table.add_row(row.signal, f"{row.jaccard:.3f}", f"{row.recall:.3f}", *biases)
    return table
