"""What specfit-report measures: placements of the model, kinds of prompts, modes."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from .bench_jobs import parse_modes, sound_prompts
from .entry import AppError
from .options import ModelChoice, measured_model_options
from .prompts import Prompt

DEFAULT_MODES = "off,chain:1,chain:2,chain:3,eagle3:31,eagle3:60,count,specfit"
OFF, SPECFIT = "off", "specfit"
# llama_decode and argmax in a loop, beside the modes.
PLAIN = "llama.cpp"
# How a page begins.
BEGINS = "# Benchmarks\n\nWritten by `specfit-report`"
# Threads of the default placements where a GPU does the rest; and half of them.
MOST_THREADS = 16
# Its value is the number of rows from which llama.cpp copies experts to the GPU.
STREAM = "GGML_OP_OFFLOAD_MIN_BATCH"


@dataclass(frozen=True)
class Placement:
    """Where the model lies. options: as typed. environment: set before llama.cpp is loaded.
    tokens: most of an answer; None: chosen by how fast it is."""

    name: str
    options: str
    environment: Mapping[str, str]
    choice: ModelChoice
    tokens: int | None


@dataclass(frozen=True)
class Asked:
    """A prompt of a kind. key: of what it says, so that an edited file asks something new."""

    kind: str
    key: str
    prompt: Prompt


@dataclass(frozen=True)
class Plan:
    """modes: as typed, `off` among them."""

    placements: tuple[Placement, ...]
    kinds: Mapping[str, Sequence[Asked]]
    modes: tuple[str, ...]


# How much longer than expected a round may take.
MARGIN = 1.2


@dataclass(frozen=True)
class Budget:
    """When measuring has to end; None: when all is measured. clock: seconds."""

    deadline: float | None
    clock: Callable[[], float] = time.monotonic

    def has(self, seconds: float) -> bool:
        return self.deadline is None or self.clock() + seconds * MARGIN <= self.deadline

    def part(self, parts: int) -> float | None:
        """Seconds of one of so many equal parts of what is left; None: no end."""
        return None if self.deadline is None else (self.deadline - self.clock()) / parts


def parse_named(text: str, option: str) -> tuple[str, str]:
    """NAME and the rest of NAME=REST. Raises AppError for anything else."""
    name, sign, rest = text.partition("=")
    sound = name and all(c.isalnum() or c in "-_." for c in name) and not name.startswith(".")
    if not (sign and sound):
        raise AppError(f"{option} {text!r}: write NAME=…, NAME of letters, digits, - _ and .")
    return name, rest


def parse_placement(text: str, choice: ModelChoice) -> Placement:
    """A placement from `NAME=[VARIABLE=VALUE …] [options]`, over the model of `choice`.

    Raises AppError, in one sentence that names it.
    """
    name, rest = parse_named(text, "--placement")
    try:
        words = shlex.split(rest)
        environment: dict[str, str] = {}
        while words and "=" in words[0] and not words[0].startswith("-"):
            variable, _, value = words.pop(0).partition("=")
            environment[variable] = value
        given: tuple[ModelChoice, int | None] = _options.main(
            words, prog_name=name, standalone_mode=False
        )
    except click.ClickException as error:
        raise AppError(f"--placement {name}: {error.format_message()}") from error
    except ValueError as error:
        raise AppError(f"--placement {name}: {error}") from error
    placed, tokens = given
    named = placed.model, placed.model_draft, placed.hf_repo, placed.hf_repo_draft
    if any(one is not None for one in named):
        raise AppError(f"--placement {name}: the model is the same everywhere; name it outside")
    whole = replace(placed, model=choice.model, model_draft=choice.model_draft)
    return Placement(name, rest.strip(), environment, whole, tokens)


@click.command(add_help_option=False)
@measured_model_options
@click.option("-n", "--predict", type=click.IntRange(min=2))
def _options(choice: ModelChoice, predict: int | None) -> tuple[ModelChoice, int | None]:
    """What may be said of a placement."""
    return choice, predict


def parse_placements(texts: Sequence[str], choice: ModelChoice) -> tuple[Placement, ...]:
    """Raises AppError for one that is unsound or named twice."""
    placements = [parse_placement(text, choice) for text in texts]
    names = [placement.name for placement in placements]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AppError(f"--placement {twice} is given twice")
    return tuple(placements)


def default_placements(gpu: bool, cores: int, layers: int) -> list[str]:
    """As --placement takes them. cores: that this process may use. layers: of the model."""
    if not gpu:
        return ["cpu="]
    threads = min(MOST_THREADS, cores)
    return [
        f"cpu-experts-{threads}=-t {threads} --cpu-moe",
        f"cpu-experts-{max(1, threads // 2)}=-t {max(1, threads // 2)} --cpu-moe",
        f"half-layers=-t {threads} --n-cpu-moe {layers // 2}",
        f"streamed={STREAM}=1 -t {threads} --cpu-moe",
        f"gpu=-t {threads} --n-cpu-moe 0",
    ]


def parse_report_modes(text: str) -> tuple[str, ...]:
    """Raises AppError for an unknown mode, or without `off`."""
    modes = tuple(str(spec) for spec in parse_modes(text))
    if OFF not in modes:
        raise AppError(f"--modes {text!r} lacks off, with which the others are compared")
    return modes


def read_kinds(texts: Sequence[str]) -> dict[str, list[Asked]]:
    """The prompts of every KIND=FILE. Raises AppError for what is unsound, or a kind twice."""
    kinds: dict[str, list[Asked]] = {}
    for text in texts:
        kind, path = parse_named(text, "--prompts")
        if kind in kinds:
            raise AppError(f"--prompts {kind} is given twice")
        prompts = sound_prompts(Path(path))
        by_key = {key_of(prompt): prompt for prompt in prompts}
        kinds[kind] = [Asked(kind, key, prompt) for key, prompt in by_key.items()]
    return kinds


def key_of(prompt: Prompt) -> str:
    return digest(prompt.messages)


def digest(value: Any) -> str:
    """A short name for a value that JSON knows."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
