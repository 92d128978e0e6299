"""How commands begin, before there is anything to import."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from specfit.app import start

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SCRIPTS = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["scripts"]
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
