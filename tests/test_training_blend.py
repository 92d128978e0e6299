"""A head between two checkpoints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specfit.models import bundled_head
from specfit.models.training.blend import WEIGHTS, blended

WEAKER = Path(__file__).parents[1] / "models" / "weaker-eagle3"


def test_a_blend_lies_between_its_checkpoints():
    early = {"w": torch.tensor([0.0, 4.0], dtype=torch.float16), "ids": torch.tensor([3, 1])}
    late = {"w": torch.tensor([1.0, 2.0], dtype=torch.float16), "ids": torch.tensor([3, 1])}
    between = blended(early, late, 0.25)
    assert between["w"].tolist() == [0.25, 3.5]
    assert between["w"].dtype == torch.float16
    assert between["ids"].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        ({"w": torch.zeros(2)}, "other tensors"),
        ({"w": torch.zeros(3), "ids": torch.tensor([3, 1])}, "shape"),
        ({"w": torch.zeros(2), "ids": torch.tensor([1, 3])}, "ids differs"),
    ],
)
def test_heads_that_do_not_belong_together_are_refused(late, reason):
    early = {"w": torch.zeros(2), "ids": torch.tensor([3, 1])}
    with pytest.raises(ValueError, match=reason):
        blended(early, late, 0.5)


def test_the_weaker_head_has_the_draft_vocabulary_of_the_bundled_one():
    weaker, bundled = load_file(WEAKER / WEIGHTS), load_file(bundled_head() / WEIGHTS)
    assert blended(weaker, bundled, 0.0).keys() == bundled.keys()
    assert not torch.equal(weaker["fc.weight"], bundled["fc.weight"])


def test_a_folder_without_a_head_gets_one_sentence(tmp_path):
    command = [sys.executable, "-m", "specfit.models.training.blend"]
    outcome = subprocess.run(
        [*command, tmp_path, bundled_head(), "-o", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 2
    assert outcome.stderr.count("\n") == 1
    assert WEIGHTS in outcome.stderr
