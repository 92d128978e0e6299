"""How long a context may be, and positions that are stretched over it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from recording import exact_engine, record

from specfit.app import batch, chat
from specfit.app.options import ModelChoice, model_options
from specfit.app.store import Message
from specfit.app.store.turns import model_messages
from specfit.backend import Engine, LoadOptions, Sampling, SpecfitError
from specfit.backend.context import context_params
from specfit.backend.loading import plan_load
from specfit.backend.rope import DEFAULT_CTX, Rope, context_size, overreach
from specfit.backend.runtime import Runtime
from specfit.models import bundled_model
from specfit.models.gguf_info import GgufInfo, read_gguf_info
from specfit.models.rope import read_rope
from specfit.models.stretch import stretched

TRAINED = 2048  # the bundled model, and the generated ones
YARN = Rope("yarn", freq_scale=1 / 4)
GREEDY = Sampling(temp=0.0)
STORY = "Once there was a fox who lived at the edge of a wood and counted the trains. "


@pytest.fixture(scope="module")
def info() -> GgufInfo:
    return read_gguf_info(bundled_model())


def parsed(*arguments: str) -> ModelChoice:
    received: list[ModelChoice] = []

    @click.command()
    @model_options
    def collect(choice: ModelChoice) -> None:
        received.append(choice)

    CliRunner().invoke(collect, list(arguments), catch_exceptions=False, standalone_mode=False)
    return received[0]


# How long


def test_a_context_of_0_is_what_the_model_was_trained_for(info: GgufInfo) -> None:
    long = replace(info, context_length=40_960)
    assert context_size(long, 0, Rope()) == 40_960
    assert context_size(long, None, Rope()) == DEFAULT_CTX
    assert context_size(info, None, Rope()) == TRAINED
    unsaid = replace(info, context_length=0)
    assert context_size(unsaid, 0, Rope()) == context_size(unsaid, None, Rope()) == DEFAULT_CTX


def test_the_plan_has_keys_and_values_of_that_whole_context() -> None:
    def kept(ctx: int) -> tuple[float, str]:
        options = parsed("-c", str(ctx)).load_options(drafting=False)
        part = next(part for part in plan_load(options).parts if part.name == "context")
        return part.gpu + part.host, part.note

    assert kept(0) == kept(TRAINED)
    assert kept(0)[0] == pytest.approx(4 * kept(512)[0], rel=0.1)
    assert kept(0)[1] == "2048 tokens"


def test_more_than_that_needs_positions_that_are_stretched(info: GgufInfo) -> None:
    with pytest.raises(SpecfitError, match=r"made for 2048 .* --rope-scaling yarn --rope-scale 3"):
        context_size(info, 5000, Rope())
    assert context_size(info, 5000, YARN) == 5000
    assert context_size(info, 5000, Rope("none")) == 5000


@pytest.mark.parametrize(
    ("rope", "ctx", "told"),
    [
        (YARN, 4 * TRAINED, None),
        (YARN, 4 * TRAINED + 1, "the 8192 that this model has positions for .--rope-scale 5"),
        (Rope("none", freq_scale=1 / 4), 3000, "the 2048 .*--rope-scale 2 would do"),
        (Rope("yarn"), 3000, "the 2048 .*--rope-scale 2 would do"),
        (Rope(freq_scale=1 / 2), 3000, None),
        (replace(YARN, yarn_orig_ctx=512), 3000, "the 2048 "),
        (Rope(freq_base=1e7), 10**6, None),
        (Rope("yarn", freq_scale=8), 512, None),
    ],
)
def test_a_context_beyond_those_is_told(
    info: GgufInfo, rope: Rope, ctx: int, told: str | None
) -> None:
    notice = overreach(info, ctx, rope)
    assert (notice is None) == (told is None)
    assert re.search(told or "", notice or "")


def test_a_model_that_was_stretched_before_is_stretched_from_where_it_was(info: GgufInfo) -> None:
    key = f"{info.architecture}.rope.scaling.original_context_length"
    stretched = replace(
        info, context_length=32_768, metadata={**info.metadata, key: 8192}
    )  # by a factor of 4
    assert Rope("yarn", freq_scale=1 / 16).reach(stretched) == 131_072
    assert Rope().reach(stretched) == 32_768


# The options


def test_llama_cpps_rope_options_reach_it() -> None:
    choice = parsed(
        *("--rope-scaling", "yarn", "--rope-scale", "4", "--rope-freq-base", "5e5"),
        *("--yarn-orig-ctx", "1024", "--yarn-ext-factor", "0.5", "--yarn-attn-factor", "1.5"),
        *("--yarn-beta-slow", "2", "--yarn-beta-fast", "24"),
    )
    params = context_params(choice.load_options(drafting=True).runtime, 512, 1, drafting=False)
    assert params.rope_scaling_type == 2
    assert (params.rope_freq_base, params.rope_freq_scale) == (5e5, 0.25)
    assert (params.yarn_orig_ctx, params.yarn_ext_factor, params.yarn_attn_factor) == (
        *(1024, 0.5, 1.5),
    )
    assert (params.yarn_beta_slow, params.yarn_beta_fast) == (2, 24)
    assert parsed("--rope-scale", "4").rope == parsed("--rope-freq-scale", "0.25").rope


def test_without_them_llama_cpp_keeps_its_own_defaults() -> None:
    import llama_cpp.llama_cpp as llama

    theirs = llama.llama_context_default_params()
    ours = context_params(parsed().load_options(drafting=True).runtime, 512, 1, drafting=False)
    names = [name for name, _ in theirs._fields_ if "rope" in name or "yarn" in name]
    assert len(names) == 8
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    "wrong",
    [
        ["--rope-scale", "2", "--rope-freq-scale", "0.5"],
        ["--rope-scale", "0"],
        ["--rope-scaling", "ntk"],
        ["--yarn-beta-fast", "nan"],
        ["--yarn-orig-ctx", "-1"],
        ["-c", "-1"],
    ],
)
def test_a_wrong_value_is_one_sentence(command, wrong):
    outcome = command(chat.main, "-p", "hi", *wrong)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)


def test_a_batch_of_stretched_positions_answers_its_lines_anew(command, tmp_path):
    lines, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
    lines.write_text("Why is the sky blue?\n")
    for extra, records in (
        ([], 1),
        ([], 1),
        (["--rope-scaling", "yarn", "--rope-scale", "2"], 2),
        (["--rope-scaling", "yarn", "--rope-freq-scale", "0.5", "-c", "4096"], 2),
    ):
        made = (batch.main, lines, "-o", out, "-n", "4", "--spec", "off", "-t", "1", "-s", "1")
        assert command(*made, *extra).code == 0
        assert len(out.read_text().splitlines()) == records


# The head follows


@pytest.mark.parametrize(("factor", "trained"), [(4.0, 2048), (2.0, 32_768), (40.0, 4096)])
def test_a_head_is_stretched_as_a_config_that_says_so(factor: float, trained: int) -> None:
    """A config of transformers' own, read by the reader of heads."""
    yarn = {"type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    config = {"rope_theta": 1e6, "max_position_embeddings": 2048}
    plain = read_rope(Path("head"), config, 128)
    wanted = read_rope(Path("head"), config | {"rope_scaling": yarn}, 128)
    info = replace(read_gguf_info(bundled_model()), context_length=trained)
    by = Rope("yarn", freq_scale=1 / factor).stretch(info)
    assert by is not None
    found = stretched(plain, by)
    np.testing.assert_allclose(found.frequencies, wanted.frequencies, rtol=1e-9)
    assert found.magnitude == pytest.approx(wanted.magnitude)
    assert stretched(wanted, by) == wanted  # one that is stretched already


def test_linear_scaling_slows_all_rotations_and_another_base_is_another_base(
    info: GgufInfo,
) -> None:
    plain = read_rope(Path("head"), {"rope_theta": 1e4}, 64)
    linear = Rope(freq_scale=1 / 3).stretch(info)
    assert linear is not None
    np.testing.assert_allclose(
        stretched(plain, linear).frequencies, np.array(plain.frequencies) / 3
    )
    base = Rope(freq_base=3e6).stretch(info)  # three times the model's own
    assert base is not None
    np.testing.assert_allclose(
        stretched(plain, base).frequencies,
        read_rope(Path("head"), {"rope_theta": 3e4}, 64).frequencies,
    )
    assert Rope().stretch(info) is None


# What the model makes of it


@pytest.fixture(scope="module")
def long() -> Iterator[Engine]:
    """The bundled pair with four times its context."""
    options = LoadOptions(
        ctx=4 * TRAINED, threads=1, cost_profile="streamed", runtime=Runtime(rope=YARN)
    )
    with Engine.load(options) as engine:
        yield engine


def tokens(engine: Engine, text: str) -> int:
    return len(engine.model.tokenize(text, add_special=False, parse_special=False))


def logits(engine: Engine, text: str) -> np.ndarray:
    engine.forget()
    engine.context.decode_prompt(
        engine.model.tokenize(text, add_special=False, parse_special=False)
    )
    found = engine.context.logits(-1).copy()
    engine.context.truncate(0)
    return found


def test_stretched_positions_change_what_the_model_reads(
    long: Engine, bundled_engine: Engine
) -> None:
    change = np.abs(logits(long, STORY) - logits(bundled_engine, STORY)).max()
    assert change > 0.1
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    assert "sky" in "".join(long.generate(question, sampling=GREEDY, max_tokens=24))


def test_a_conversation_goes_on_past_the_trained_context(long: Engine) -> None:
    story = STORY * (5 * TRAINED // 4 // 18)
    messages = [{"role": "user", "content": f"{story}\nWho counted the trains?"}]
    generation = long.generate(messages, sampling=GREEDY, max_tokens=24)
    assert "train" in "".join(generation)
    assert generation.report.prompt_tokens > TRAINED
    assert generation.report.completion_tokens > 5
    assert not long.notices


def test_drafts_change_no_text_under_yarn(exact_pair: tuple[Path, Path]) -> None:
    with exact_engine(exact_pair, replace(YARN, freq_scale=1 / 2), ctx=TRAINED + 512) as exact:
        prompt = STORY * ((TRAINED - 60) // tokens(exact, STORY))
        off = record(exact, prompt, "off", GREEDY, 160)
        assert len(off.prompt) + len(off.tokens) > TRAINED
        for mode in ("chain:3", "specfit"):
            run = record(exact, prompt, mode, GREEDY, 160)
            assert run.tokens == off.tokens
            assert sum(len(step.path) - 1 for step in run.steps) > 10


# At its end


def test_an_answer_that_fills_the_context_says_so_and_others_do_not(command):
    asked = ("-p", "Tell me a long story about a fox.", "--temp", 0, "--spec", "off", "-t", 1)
    cut = command(chat.main, *asked, "-c", 48)
    assert cut.code == 0
    assert cut.out.strip()
    assert cut.err == "The answer was cut off where the context ends; -c makes it longer.\n"
    short = command(chat.main, *asked, "-n", 8)
    assert (short.code, short.err) == (0, "")


def test_after_an_answer_that_filled_the_context_the_conversation_goes_on() -> None:
    with Engine.load(LoadOptions(ctx=128, threads=1, drafting=False)) as engine:
        question = {"role": "user", "content": "Tell me a long story about a fox and a crow."}
        engine.model.ends = lambda _token: False  # type: ignore[method-assign]
        generation = engine.generate([question], sampling=GREEDY)
        story = "".join(generation)
        assert generation.filled_context
        path = [
            Message(0, None, "user", question["content"]),
            Message(0, None, "assistant", story, "length"),
            Message(0, None, "user", "Go on."),
        ]
        messages, dropped = model_messages(path, str, engine.count_tokens, 96)
        assert dropped == 1
        assert [one["role"] for one in messages] == ["user", "assistant", "user"]
        assert story.endswith(messages[1]["content"].removeprefix("…"))
        more = engine.generate(messages, sampling=GREEDY)
        assert len("".join(more)) > 20
