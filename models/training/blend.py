"""python -m specfit.models.training.blend EARLY LATE: a head between two checkpoints of one run.

For speeds that mean something on another model, a head has to be as good as those published for it,
no better: between two checkpoints of a training run the mean of their weights is about as good as
the checkpoints that were not kept.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
import torch

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def blended(
    early: dict[str, torch.Tensor], late: dict[str, torch.Tensor], share: float
) -> dict[str, torch.Tensor]:
    """Weights at `share` of the way from `early` to `late`, in the dtypes of `early`.

    Raises ValueError if they are not checkpoints of the same head with the same draft vocabulary.
    """
    if early.keys() != late.keys():
        raise ValueError("they hold other tensors")
    for name, one in early.items():
        if one.shape != late[name].shape:
            raise ValueError(f"{name} has another shape")
        if not one.is_floating_point() and not torch.equal(one, late[name]):
            raise ValueError(f"{name} differs")
    return {
        name: torch.lerp(one.float(), late[name].float(), share).to(one.dtype)
        if one.is_floating_point()
        else one
        for name, one in early.items()
    }


@click.command()
@click.argument("early", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("late", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--share",
    type=click.FloatRange(0, 1),
    default=0.4,
    show_default=True,
    help="How much of LATE; the rest is of EARLY.",
)
@click.option("-o", "--output", "out", required=True, type=click.Path(path_type=Path),
              help="Folder for the head.")  # fmt: skip
def blend(early: Path, late: Path, share: float, out: Path) -> None:
    """Write a head between the checkpoints in the folders EARLY and LATE."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        weights = blended(load_file(early / WEIGHTS), load_file(late / WEIGHTS), share)
        out.mkdir(parents=True, exist_ok=True)
        save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
        shutil.copyfile(early / CONFIG, out / CONFIG)
    except (OSError, SafetensorError, ValueError) as error:
        print(f"{early} and {late} cannot be blended: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    blend()
