"""The bundled pair: small enough, complete, and good for what it is there for."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from specfit.backend import Engine, Report, Sampling, Spec
from specfit.models import bundled_head, bundled_model
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info


def test_it_ships_in_30_megabytes() -> None:
    folder = bundled_model().parent
    assert bundled_head().parent == folder
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) <= 30_000_000


def test_what_the_target_says_of_itself() -> None:
    info = read_gguf_info(bundled_model())
    assert info.name == "SpecFit Tiny"
    assert info.architecture == "qwen3moe"
    assert (info.n_layers, info.n_embd, info.n_vocab) == (8, 256, 8192)
    assert (info.n_experts, info.n_experts_used, info.context_length) == (128, 8, 2048)
    assert "<|im_start|>" in str(info.metadata["tokenizer.chat_template"])
    for tensor in info.tensors:
        if len(tensor.shape) == 1 or "ffn_gate_inp" in tensor.name:
            assert tensor.type.name == "F32"
        else:
            assert tensor.type.name == ("Q4_0" if tensor.name.startswith("blk.") else "Q8_0")


def test_the_head_fits_its_target() -> None:
    info = read_gguf_info(bundled_model())
    head = Eagle3Head.load(
        bundled_head(), embeddings=TokenEmbeddings.load(info), target=TargetShape.of(info)
    )
    assert head.taps == (2, 4, 5)
    weights = load_file(bundled_head() / "model.safetensors")
    assert weights["lm_head.weight"].dtype == torch.float16


def test_naming_the_files_loads_nothing_heavy() -> None:
    script = "import sys, specfit.models as m; m.bundled_model(); print(sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "'torch'" not in modules and "'numpy'" not in modules


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Tom has 7 apples and buys 5 more. How many apples does he have now?", "12"),
        ("What is 9 x 6?", "54"),
    ],
)
def test_it_answers(bundled_engine: Engine, prompt: str, answer: str) -> None:
    assert answer in text_of(bundled_engine, prompt, "off", 60).text


def test_the_head_is_right_about_half_the_time(bundled_engine: Engine) -> None:
    """Greedy chains of three drafts; the card beside the files says 2.3 tokens a cycle."""
    prompts = (
        "What do bees do in winter?",
        "Give me three ideas for a rainy afternoon.",
        "Why do people put salt on icy roads?",
        "Write a short note to thank a friend.",
    )
    reports = [text_of(bundled_engine, prompt, "chain:3", 60) for prompt in prompts]
    accepted, cycles = (sum(getattr(r, key) for r in reports) for key in ("accepted", "cycles"))
    assert 1.7 < 1 + accepted / cycles < 3.2


def text_of(engine: Engine, prompt: str, spec: str, n: int) -> Report:
    generation = engine.generate(
        [{"role": "user", "content": prompt}],
        sampling=Sampling(temp=0),
        max_tokens=n,
        spec=Spec.parse(spec),
    )
    for _ in generation:
        pass
    return generation.report
