"""What only a GPU can show. Needs a build for one, and the pair that is to be loaded:

SPECFIT_GPU_MODEL=full.gguf SPECFIT_GPU_HEAD=head pytest tests/test_on_gpu.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specfit.backend import library
from specfit.backend.plan import GIB

PAIR = os.environ.get("SPECFIT_GPU_MODEL"), os.environ.get("SPECFIT_GPU_HEAD")
BUDGETS = (6, 8, 12, 16, 24)

pytestmark = pytest.mark.skipif(
    None in PAIR or not library.supports_gpu(), reason="needs a GPU and the pair for it"
)


def use(*arguments: object) -> dict:
    script = Path(__file__).with_name("vram_use.py")
    command = [sys.executable, str(script), *PAIR, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    print(found.stdout)
    return json.loads(found.stdout)


@pytest.mark.parametrize(
    "arguments",
    [*((budget, 1) for budget in BUDGETS), (12, "auto"), (12, 1, "q8_0"), (12, 1, "f16", "none")],
    ids=str,
)
def test_a_load_stays_inside_its_budget_and_takes_what_was_predicted(arguments):
    found = use(*arguments)
    assert found["taken"] <= arguments[0] * GIB
    # Of torch's head llama.cpp says nothing.
    head = found["parts"].get("draft head", (0, 0))[0]
    assert found["predicted_gpu"] - head == pytest.approx(found["logged_gpu"], rel=0.03)
