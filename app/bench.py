"""specfit-bench: what each speculation mode brings, on your prompts and your machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import click

from .bench_jobs import (
    Outputs,
    compare,
    compare_lines,
    fit,
    mode_names,
    parse_modes,
    replay,
    trace,
)
from .bench_out import refuse_overwriting
from .entry import AppError, run
from .options import (
    ModelChoice,
    SamplingChoice,
    measured_model_options,
    predict_option,
    sampling_options,
)

DEFAULT_MODES = "off,chain:3,eagle3:31,specfit"

_LOADING = {
    *("source", "predict"),
    *(field.name for field in fields(ModelChoice)),
    *(field.name for field in fields(SamplingChoice)),
}
_RESULTS = {"modes", "json_path", "plot_path"}
# The parameters of each job, by the option that asks for it.
_PARAMETERS = {
    "--replay": {"replay_path", "ablate", "residency", "cost_profile", "drafter", *_RESULTS},
    "--trace": {"trace_path", *_LOADING},
    "--fit": {"fit_path", "model", "model_draft", "hf_repo", "hf_repo_draft"},
    "--prompts": {"repeat", "audit", *_LOADING, *_RESULTS},
}


_FILE = click.Path(path_type=Path)
_OPTIONS = [
    click.option("--prompts", "source", metavar="FILE",
                 type=click.Path(path_type=Path, allow_dash=True),
                 help="Prompts as specfit-batch reads them."),
    click.option("--trace", "trace_path", type=_FILE, metavar="OUT",
                 help="Instead of comparing modes, record all that any plan could meet there, for "
                 "--replay (slow); an existing file is replaced. OUT.gz is compressed."),
    click.option("--replay", "replay_path", type=_FILE, metavar="FILE",
                 help="Instead of running a model, take all modes through such a recording, by the "
                 "drafters of --drafter, under every shipped cost profile, or the one of "
                 "--cost-profile."),
    click.option("--fit", "fit_path", type=_FILE, metavar="FILE",
                 help="Instead of running a model, learn from such a recording what the planner "
                 "should expect of this pair of models (-m, -md), and say how well experts are "
                 "forecast on the quarter of the answers that is held out; at least 4."),
    click.option("--modes", metavar="MODE,MODE,…",
                 help="Speculation modes: off, chain:K, eagle3[:TOTAL[:DEPTH[:K]]], count, "
                 f"specfit[:ratio]. MODE@N and MODE@auto make N answers at a time. "
                 f"Default: {DEFAULT_MODES}; for --replay all, also oracle and static."),
    click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="R",
                 help="Times that every prompt is answered under every mode. Default: 1."),
    click.option("--audit", is_flag=True,
                 help="Also print how good the predictions of cycles were."),
    click.option("--ablate", is_flag=True,
                 help="With --replay: also take specfit without each of its parts."),
    click.option("--residency", metavar="SHARE,SHARE,…",
                 help="With --replay: instead of profiles, a GPU whose cache holds such shares of "
                 "all experts (0.4,0.77): hits by policy, and all modes with what they learn."),
    click.option("--json", "json_path", type=_FILE, metavar="OUT",
                 help="Write the results there too; an existing file is replaced."),
    click.option("--plot", "plot_path", type=_FILE, metavar="OUT.png",
                 help="Draw predictions against what was measured, and the modes' throughput."),
]  # fmt: skip


def _bench_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        option(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@_bench_options
@measured_model_options
@sampling_options
@predict_option(128, "128")
def bench(
    source: Path | None,
    trace_path: Path | None,
    replay_path: Path | None,
    fit_path: Path | None,
    modes: str | None,
    repeat: int,
    audit: bool,
    ablate: bool,
    residency: str | None,
    json_path: Path | None,
    plot_path: Path | None,
    choice: ModelChoice,
    sampling_choice: SamplingChoice,
    predict: int,
) -> None:
    """Compare speculation modes: every prompt under every mode, in turn, on one loaded model.

    Ratios are medians over prompts and repeats of each run's tokens per second against those of
    off (of the first mode, if off is not among them) on the same prompt in the same repeat. The
    seed is fixed unless -s says otherwise.
    """
    _refuse_options_of_other_jobs()
    inputs = (source, replay_path, fit_path, choice.model, choice.model_draft, choice.cost_profile)
    refuse_overwriting([path for path in inputs if path], [trace_path, json_path, plot_path])
    outputs = Outputs(json_path, plot_path)
    if replay_path is not None:
        replay(replay_path, modes, choice, residency, outputs, ablate=ablate)
    elif fit_path is not None:
        fit(fit_path, choice)
    elif source is None:
        raise AppError(
            "give prompts by --prompts FILE, or a recorded trace by --replay FILE or --fit FILE"
        )
    elif trace_path is not None:
        trace(source, trace_path, choice, sampling_choice, predict)
    else:
        wanted = DEFAULT_MODES if modes is None else modes
        if "@" in wanted:
            if audit or plot_path is not None:
                raise AppError("--audit and --plot are of single answers; leave MODE@N out")
            compare_lines(
                source, mode_names(wanted), repeat, choice, sampling_choice, predict, outputs
            )
            return
        compare(
            source,
            parse_modes(wanted),
            repeat,
            choice,
            sampling_choice,
            predict,
            outputs,
            audit=audit,
        )


def _refuse_options_of_other_jobs() -> None:
    """Raises AppError for an option that the job asked for would ignore."""
    context = click.get_current_context()
    given = {
        parameter.name: parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    }
    job = next((job for job in _PARAMETERS if job in given.values()), "--prompts")
    for name, option in given.items():
        if name not in _PARAMETERS[job]:
            if job != "--prompts":
                raise AppError(f"{option} does not go with {job}")
            needed = next(other for other, names in _PARAMETERS.items() if name in names)
            raise AppError(f"{option} needs {needed}")


def main() -> None:
    """Entry point of `specfit-bench`."""
    run(bench, "specfit-bench")
