"""What is learned about a pair of models outlives the run; losing it is no error."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specfit.backend import Engine, LoadOptions, Sampling, Spec
from specfit.backend.memory import keep, memory_path, recall
from specfit.planner import Acceptance, Beliefs, DraftTree, Forecast, Outlook, UnionByRows, pack


def beliefs(layers: int = 2) -> Beliefs:
    forecast = Forecast(layers, 32, 4, np.ones(layers))
    unions = UnionByRows(np.full(65, 4.0))
    return Beliefs(Acceptance(), Outlook(), forecast, unions, np.ones(layers))


def taught() -> Beliefs:
    tree = DraftTree(np.array([-1, 0], np.int32), np.array([5, 6], np.int32), np.array([1, 0.9]))
    learner = beliefs()
    experts = pack(np.arange(16).reshape(2, 2, 4) % 13, 32)
    for _ in range(40):
        learner.outlook.learn(tree, np.array([1.0, 0.9]))
        learner.learn(tree, [0], None, experts)
    return learner


def test_what_was_learned_is_there_again(tmp_path: Path) -> None:
    learner, other = taught(), beliefs()
    keep(learner, tmp_path / "new" / "learned.npz")
    assert recall(other, tmp_path / "new" / "learned.npz")
    for name, array in learner.state().items():
        np.testing.assert_array_equal(array, other.state()[name])


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_damaged_file_is_forgotten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learned.npz"
    path.write_bytes(content)
    assert not recall(beliefs(), path)


def test_what_another_model_taught_does_not_fit(tmp_path: Path) -> None:
    keep(taught(), tmp_path / "learned.npz")
    assert not recall(beliefs(layers=3), tmp_path / "learned.npz")


def test_where_nothing_can_be_kept_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    keep(taught(), tmp_path / "file" / "learned.npz")
    keep(taught(), tmp_path / "file" / "folder" / "learned.npz")


def test_an_engine_keeps_what_it_learned_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("specfit.backend.cache.platformdirs.user_cache_path", lambda _: tmp_path)
    options = LoadOptions(ctx=512, threads=1, cost_profile="streamed")
    with Engine.load(options) as engine:
        question = [{"role": "user", "content": "What is a tree?"}]
        for _ in engine.generate(question, sampling=Sampling(temp=0.0), max_tokens=40):
            pass
        learned = engine.policy(Spec.parse("specfit")).beliefs.state()
    with Engine.load(options) as engine:
        again = engine.policy(Spec.parse("specfit")).beliefs.state()
    assert learned.keys() == again.keys()
    np.testing.assert_array_equal(learned["outlook/sums"], again["outlook/sums"])
    assert learned["outlook/seen"].sum() > 0


@pytest.mark.parametrize(
    "names",
    [
        ["model.safetensors"],
        ["pytorch_model.bin"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    ],
)
def test_every_file_of_a_head_makes_the_pair(tmp_path: Path, names: list[str]) -> None:
    model, head = tmp_path / "model.gguf", tmp_path / "head"
    head.mkdir()
    if len(names) > 1:
        index = {"weight_map": {name: name for name in names}}
        (head / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (model, *(head / name for name in names)):
        path.write_bytes(b"weights")
    before = memory_path(model, head)
    assert memory_path(model, head) == before
    (head / names[-1]).write_bytes(b"other weights")
    assert memory_path(model, head) != before
