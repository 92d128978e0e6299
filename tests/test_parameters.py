"""Parameters of a conversation: limits, JSON, presets, and what is left to the model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit.app.entry import AppError
from specfit.app.options import SamplingChoice
from specfit.app.parameters import Parameters, read_value, written
from specfit.app.presets import PRESETS, preset_of
from specfit.backend import Sampling

RECOMMENDED = Sampling(temp=0.6, top_k=20, top_p=0.95, min_p=0.0)

parameters = st.builds(
    Parameters,
    temp=st.none() | st.floats(0, 10),
    top_k=st.none() | st.integers(0, 2**31 - 1),
    top_p=st.none() | st.floats(0, 1),
    min_p=st.none() | st.floats(0, 1),
    seed=st.none() | st.integers(0, 2**32 - 1),
    max_tokens=st.none() | st.integers(0, 2**31 - 1),
    thinking=st.none() | st.booleans(),
    spec=st.sampled_from(["off", "chain:3", "specfit", "specfit:ratio"]),
)


@given(parameters)
def test_json_brings_back_the_same_values(values):
    assert Parameters.from_dict(json.loads(json.dumps(values.as_dict()))) == values


@given(st.dictionaries(st.sampled_from(["temp", "seed", "thinking", "spec", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
)))  # fmt: skip
def test_json_of_a_stranger_gives_values_within_the_limits(content):
    values = Parameters.from_dict(content)
    assert values.temp is None or 0 <= values.temp < float("inf")
    assert values.seed is None or 0 <= values.seed < 2**32
    assert values.thinking in (None, True, False)
    assert read_value("spec", values.spec) == values.spec


def test_unknown_keys_are_ignored():
    assert Parameters.from_dict({"temp": 0.5, "mirostat": 2}) == Parameters(temp=0.5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temp", "-1"),
        ("temp", "nan"),
        ("temp", "warm"),
        ("top_k", "2.5"),
        ("top_k", "-1"),
        ("top_p", "1.1"),
        ("min_p", "inf"),
        ("seed", "4294967296"),
        ("max_tokens", "-2"),
        ("spec", "chain:x"),
    ],
)
def test_what_the_command_line_refuses_is_refused_in_one_sentence(name, text):
    with pytest.raises(AppError) as refused:
        read_value(name, text)
    assert "\n" not in str(refused.value)
    assert "give" in str(refused.value) or name == "spec"


def test_empty_fields_and_minus_one_are_left_open():
    assert [read_value(name, " ") for name in ("temp", "seed", "max_tokens")] == [None] * 3
    assert read_value("seed", "-1") is None
    assert read_value("max_tokens", "-1") is None
    assert read_value("spec", "") == "specfit"


def test_fields_show_what_they_read():
    for name, text in [("temp", "0.7"), ("top_k", "20"), ("top_p", "1"), ("min_p", "0.123456789")]:
        assert written(read_value(name, text)) == text


def test_what_is_left_open_follows_the_model():
    assert Parameters().over(RECOMMENDED) == RECOMMENDED
    sampling = Parameters(temp=0.0, seed=7).over(RECOMMENDED)
    assert (sampling.temp, sampling.top_k, sampling.seed) == (0.0, 20, 7)


def test_the_command_line_gives_the_first_values():
    given_values = SamplingChoice(temp=0.1, top_k=None, top_p=None, min_p=None, seed=-1)
    assert Parameters.given(given_values, -1, "off") == Parameters(temp=0.1, spec="off")
    assert Parameters.given(given_values, 5, "off").max_tokens == 5


def test_qwen3s_published_values_are_presets():
    by_name = {preset.name: preset.applied(Parameters()) for preset in PRESETS}
    thinking, plain = by_name["Qwen3, thinking"], by_name["Qwen3, not thinking"]
    assert (thinking.temp, thinking.top_p, thinking.top_k, thinking.min_p) == (0.6, 0.95, 20, 0)
    assert (plain.temp, plain.top_p, plain.top_k, plain.min_p) == (0.7, 0.8, 20, 0)
    assert (thinking.thinking, plain.thinking) == (True, False)


@given(parameters, st.sampled_from(PRESETS))
def test_a_preset_leaves_all_else_and_is_recognised(values, preset):
    applied = preset.applied(values)
    assert preset_of(applied) == preset
    assert (applied.seed, applied.max_tokens, applied.spec) == (
        values.seed,
        values.max_tokens,
        values.spec,
    )
