"""What llama.cpp's own programs have in common: whether they run here, and how they are told where
a visit had the model.

They have no cache of experts, and compute all of them on the CPU. Options of RoPE are not passed
on: llama-bench has none, and they cost no time. The rest of what a placement may say of the model
both take by the same names.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .entry import AppError
from .report_plan import Placement

# Their names, of fields of Runtime.
_RUNTIME = {
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "flash_attn": "-fa",
    "load_mode": "-lm",
    "numa": "--numa",
    "split_mode": "-sm",
    "main_gpu": "-mg",
    "rpc": "--rpc",
}


@dataclass(frozen=True)
class Placed:
    """A model as a visit had it."""

    model: Path
    placement: Placement
    threads: int
    gpu_layers: int
    n_cpu_moe: int

    @classmethod
    def of(cls, visit: Mapping[str, Any], placement: Placement) -> Placed:
        """visit: as it was recorded."""
        from specfit.models import bundled_model

        model = placement.choice.model or bundled_model()
        return cls(model, placement, visit["threads"], visit["gpu_layers"], visit["n_cpu_moe"])

    @property
    def options(self) -> list[str]:
        """As the programs take them; defaults, which are the same, are left out."""
        from specfit.backend.runtime import Runtime

        options = ["-t", str(self.threads), "-ngl", str(self.gpu_layers)]
        if self.gpu_layers and self.n_cpu_moe:
            options += ["-ncmoe", str(self.n_cpu_moe)]
        asked, usual = self.placement.choice.load_options(drafting=False).runtime, Runtime()
        for name, option in _RUNTIME.items():
            if (value := getattr(asked, name)) != getattr(usual, name):
                options += [option, str(value)]
        if asked.tensor_split:
            options += ["-ts", "/".join(f"{share:g}" for share in asked.tensor_split)]
        return options

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.placement.environment}

    def command(self, program: str, options: Sequence[str]) -> str:
        """For the page: the program and the model by their names alone."""
        variables = [f"{name}={value}" for name, value in self.placement.environment.items()]
        return " ".join([*variables, program, "-m", self.model.name, *options])


def check_program(name: str, path: Path, knows: str) -> None:
    """Raises AppError unless `path` is that program, starts here, and has `knows` in its help."""
    try:
        found = subprocess.run([path, "--help"], capture_output=True, timeout=60, check=False)
    except OSError as error:
        raise AppError(f"--{name} {path} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise AppError(f"--{name} {path} cannot be run: its --help takes a minute") from error
    if knows.encode() not in found.stdout:
        why = last_line(found.stderr) or f"it does not know {knows}"
        raise AppError(f"--{name} {path} is no {name} that runs here: {why}")


def last_line(said: bytes) -> str:
    """Of what a program wrote; empty if that is nothing."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
