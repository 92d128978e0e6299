"""Option names and values as llama.cpp's users type them, and how every command ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from specfit.app import batch, bench, chat, options
from specfit.app.entry import user_sentence
from specfit.app.options import (
    ModelChoice,
    SamplingChoice,
    model_options,
    sampling_options,
    token_limit,
)
from specfit.app.plain_text import shown
from specfit.app.plan_table import plan_table
from specfit.backend import Sampling
from specfit.backend.plan import Gpu, Machine, Part, Placement, Plan
from specfit.backend.runtime import Runtime
from specfit.planner import DRAFTERS

MAINS = [chat.main, batch.main, bench.main]


def parsed(*arguments: str) -> tuple[ModelChoice, SamplingChoice]:
    """What a command receives for `arguments`."""
    received = []

    @click.command()
    @model_options
    @sampling_options
    def collect(choice: ModelChoice, sampling_choice: SamplingChoice) -> None:
        received.append((choice, sampling_choice))

    CliRunner().invoke(collect, list(arguments), catch_exceptions=False, standalone_mode=False)
    return received[0]


@pytest.mark.parametrize(
    ("typed", "drafters"),
    [
        ((), ("eagle3", "ngram")),
        (("--drafter", "ngram"), ("ngram",)),
        (("--drafter", "ngram, eagle3"), ("eagle3", "ngram")),
    ],
)
def test_drafters_are_named_with_commas_between(typed, drafters):
    assert parsed(*typed)[0].load_options(drafting=True).drafters == drafters
    assert options.DRAFTERS == DRAFTERS


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize(
    ("name", "says"),
    [("medusa", "'medusa' is no drafter; there are eagle3 and ngram"), ("", "none")],
)
def test_a_drafter_that_is_not_known_is_refused(command, main, name, says):
    needed = {chat.main: [], batch.main: ["in.txt", "-o", "out.jsonl"], bench.main: []}
    outcome = command(main, *needed[main], "--drafter", name)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert says in outcome.err


def test_llama_cpp_names_work_as_typed():
    choice, sampling = parsed(
        *("-m", "a.gguf", "-md", "head", "-ngl", "-1", "--n-cpu-moe", "3", "-c", "512", "-t", "2"),
        *("--temp", "0", "--top-k", "5", "--top-p", ".9", "--min-p", ".1", "-s", "7"),
    )
    assert choice == ModelChoice(
        model=Path("a.gguf"),
        model_draft=Path("head"),
        gpu_layers=-1,
        cpu_moe=False,
        n_cpu_moe=3,
        ctx_size=512,
        threads=2,
        cost_profile=None,
    )
    assert sampling == SamplingChoice(temp=0, top_k=5, top_p=0.9, min_p=0.1, seed=7)


def test_long_names_mean_the_same():
    assert parsed("--model", "a", "--model-draft", "b", "--gpu-layers", "2") == parsed(
        "-m", "a", "-md", "b", "-ngl", "2"
    )


def test_engine_options_follow():
    choice, _ = parsed("-m", "a.gguf", "-md", "head", "-c", "512", "--cost-profile", "streamed")
    options = choice.load_options(drafting=True)
    assert (options.model, options.head) == (Path("a.gguf"), Path("head"))
    assert (options.ctx, options.cost_profile, options.drafting) == (512, "streamed", True)
    assert options.n_cpu_moe is None


def test_sampling_values_are_overridden_one_by_one():
    recommended = Sampling(temp=0.6, top_k=20, top_p=0.95, min_p=0.0, seed=None)
    _, nothing = parsed()
    assert nothing.over(recommended) == recommended
    _, cold = parsed("--temp", "0")
    assert cold.over(recommended) == Sampling(temp=0, top_k=20, top_p=0.95, min_p=0.0, seed=None)
    _, random = parsed("-s", "-1")
    assert random.over(Sampling(seed=3)).seed is None


def test_minus_one_token_is_no_limit():
    assert (token_limit(-1), token_limit(0), token_limit(5)) == (None, 0, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bogus"],
        ["--temp", "nan"],
        ["--temp", "-1"],
        ["--top-p", "1.5"],
        ["-s", "4294967296"],
        ["-t", "0"],
        ["-c", "many"],
        ["--cpu-moe", "--n-cpu-moe", "2"],
        ["--no-mmap", "-lm", "mmap"],
        ["--n-cpu-moe", "all"],
        ["--vram-budget", "0"],
        ["-ts", "1,x"],
        ["-ctk", "q9"],
    ],
)
@pytest.mark.parametrize("main", MAINS)
def test_a_wrong_option_is_one_sentence_and_code_2(command, main, arguments):
    needed = {batch.main: ["in", "-o", "out"], bench.main: ["--prompts", "in"]}
    outcome = command(main, *needed.get(main, ["-p", "hello"]), *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("specfit-")


def test_help_loads_no_engine():
    """Torch alone takes seconds to import."""
    code = (
        "import sys; from specfit.app import chat, batch, bench\n"
        "for c in (chat.chat, batch.batch, bench.bench):\n"
        "    c.main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'llama_cpp', 'textual', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_defect_of_ours_has_no_sentence():
    assert user_sentence(KeyError("x")) is None
    assert user_sentence(FileNotFoundError(2, "No such file or directory", "a.gguf")) == (
        "a.gguf: No such file or directory"
    )


def test_control_characters_are_shown():
    hostile = "a\x1b[31mred\x1b]52;c;aGk=\x07\x9bK\x7f\x00\r\nb\rc\td"
    plain = shown(hostile)
    assert plain == "a␛[31mred␛]52;c;aGk=␇<9B>K␡␀\nb␍c\td"
    assert shown("naïve 日本語 👩‍🚀 é") == "naïve 日本語 👩‍🚀 é"
    assert shown("a\u202eb\u2066c\u200f") == "a<202E>b<2066>c\u200f"  # a mark turns nothing


def test_llama_cpps_options_for_loading_reach_it():
    choice, _ = parsed(
        *("-ngl", "auto", "--n-cpu-moe", "auto", "--vram-budget", "7.5", "-ctk", "q8_0", "-ctv"),
        *("q4_0", "-fa", "on", "--no-mmap", "--mlock", "--numa", "isolate", "-sm", "row"),
        *("-ts", "3,1", "-mg", "1", "--rpc", "a:1,b:2"),
    )
    options = choice.load_options(drafting=True)
    assert (options.gpu_layers, options.n_cpu_moe) == (None, None)
    assert options.vram_budget == 7.5 * 2**30
    assert options.runtime == Runtime(
        "q8_0", "q4_0", "on", "mlock", "isolate", "row", (3, 1), 1, "a:1,b:2"
    )
    all_on_host = parsed("--cpu-moe", "-ngl", "all", "-lm", "dio")[0].load_options(drafting=True)
    assert (all_on_host.gpu_layers, all_on_host.runtime.load_mode) == (-1, "dio")
    assert all_on_host.n_cpu_moe > 1000


def test_the_size_of_the_expert_cache_is_a_number_or_auto():
    for words, size in ((), None), (("auto",), None), (("0",), 0), (("2.5",), 2.5 * 2**30):
        choice, _ = parsed(*(("--expert-cache", *words) if words else ()))
        assert choice.load_options(drafting=True).expert_cache == size


@pytest.mark.parametrize("words", ["much", "-1", "nan", "inf", ""])
def test_another_size_of_the_expert_cache_is_refused(words):
    with pytest.raises(click.UsageError):
        parsed("--expert-cache", words)


def test_the_plan_is_a_small_table():
    machine = Machine(24 << 30, 32 << 30, (Gpu("CUDA0", 8 << 30), Gpu("CUDA1", 4 << 30)))
    parts = (
        Part("layers", 1 << 30, 1 << 28, "49 of 49 on the GPU"),
        Part("experts", 6 << 30, 3 << 30),
    )
    plan = Plan(Placement(49, 12), machine, 1, parts, (4 << 30, 3 << 30))
    assert plan_table(plan).splitlines() == [
        "GiB             GPU    host",
        "layers         1.00    0.25  49 of 49 on the GPU",
        "experts        6.00    3.00",
        "together       7.00    3.25",
        "free          12.00   24.00",
        "CUDA0 4.00, CUDA1 3.00",
    ]
