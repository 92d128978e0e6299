"""Whether the Python packages that SpecFit needs can be imported, told by a process of its own.

An extension that was built for something else can take the process with it. Run as
`python -m specfit.app.doctor_packages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from .doctor_process import Answer, ask, tell

# By their names for pip; llama-cpp-python has a process of its own.
PACKAGES = {
    name: name.replace("-", "_")
    for name in (
        *("numpy", "psutil", "click", "platformdirs", "rich", "textual", "jinja2", "gguf"),
        *("huggingface-hub", "safetensors", "threadpoolctl"),
    )
}
SEARCH = "the planner's search"
ABSENT = "not installed"


@dataclass(frozen=True)
class Packages:
    """broken: of PACKAGES, and SEARCH, with why they cannot be imported: ABSENT, or in words."""

    broken: Mapping[str, str]


def examine() -> Packages:
    """Never raises."""
    return read_answer(ask("specfit.app.doctor_packages"))


def read_answer(answer: Answer) -> Packages:
    told = answer.told
    broken = {
        name: told[f"broken {name}"] for name in (*PACKAGES, SEARCH) if f"broken {name}" in told
    }
    if answer.problem:
        broken[told.get("step", "Python")] = answer.problem
    return Packages(broken)


def _tell() -> None:
    for name, module in {**PACKAGES, SEARCH: "specfit.planner.search"}.items():
        tell(step=name)
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            absent = error.name == module
            tell(**{f"broken {name}": ABSENT if absent else f"{type(error).__name__}: {error}"})
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            tell(**{f"broken {name}": reason[:300]})


if __name__ == "__main__":
    _tell()
