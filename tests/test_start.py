"""How commands begin, before there is anything to import."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from specfit.app import start
from specfit.app.doctor_packages import PACKAGES

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
WHOLE = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
SCRIPTS = WHOLE["scripts"]
# Ctrl-C comes while a module is looked for.
INTERRUPTED = """
import sys

class Stopped:
    def find_spec(self, name, *rest):
        if name == "click":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stopped())
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_control_c_while_a_command_is_imported_ends_it_like_later_ones(script: str) -> None:
    module, _, name = SCRIPTS[script].partition(":")
    assert name == script.removeprefix("specfit-").replace("-", "_")
    code = f"{INTERRUPTED}from {module} import {name} as command; command()"
    ended = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_line_of_control_c_is_closed_on_a_terminal(monkeypatch, capsys) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "import_module", interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(SystemExit) as ended:
        start.chat()
    assert (ended.value.code, capsys.readouterr().err) == (130, "\n")


MISSING = """
import sys

class Missing:
    def find_spec(self, name, *rest):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize("package", ["click", "psutil", "threadpoolctl"])
def test_a_missing_package_gets_a_sentence_that_says_what_to_do(package: str, tmp_path) -> None:
    code = f"{MISSING.format(package=package)}from specfit.app.start import batch; batch()"
    asked = [sys.executable, "-c", code, "-", "-o", tmp_path / "answers.jsonl"]
    ended = subprocess.run(asked, input="Hi\n", capture_output=True, text=True)
    said = ended.stderr.splitlines()[-1]
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said.startswith(f"specfit-batch: No module named '{package}'; `make setup`")


def test_an_import_of_our_own_that_fails_is_a_defect_and_keeps_its_traceback() -> None:
    assert start.unimported(ModuleNotFoundError("gone", name="specfit.app.gone")) is None


def test_the_doctor_examines_every_package_that_is_declared() -> None:
    declared = {re.split(r"[=<>]", needed)[0] for needed in WHOLE["dependencies"]}
    assert set(PACKAGES) == declared - {"llama-cpp-python"}  # which it examines by itself
