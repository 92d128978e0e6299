"""Every layout that EAGLE-3 heads are published in drafts as the formula it was trained with."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from publishedheads import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    MLP,
    VOCAB,
    WIDTH,
    Published,
    Write,
    angelslim,
    check,
    eagle31,
    halved,
    modelopt,
    pickled,
    safetensors,
    sharded,
    specforge,
    speculators,
)

from specfit.models.checkpoint import TargetShape, read_checkpoint
from specfit.models.embeddings import TokenEmbeddings

LAYOUTS = [specforge, angelslim, eagle31, modelopt, speculators]
FILES: dict[str, Write] = {
    "safetensors": safetensors,
    "safetensors in parts": sharded("safetensors"),
    "bin": pickled,
    "bin in parts": sharded("bin"),
}


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_in_each_kind_of_file(
    tmp_path: Path, layout: Callable[[], Published], files: str
) -> None:
    head = layout()
    check(head, head.load(tmp_path, FILES[files]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_in_each_type(
    tmp_path: Path, layout: Callable[[], Published], dtype: torch.dtype
) -> None:
    head = layout()
    head.tensors = {name: halved(tensor, dtype) for name, tensor in head.tensors.items()}
    head.embeddings = halved(head.embeddings, dtype)
    check(head, head.load(tmp_path))


def switched(**config: object) -> Callable[[Published], None]:
    return lambda head: head.config.update(config)


def normed_residual(head: Published) -> None:
    head.config["norm_before_residual"] = True
    head.residual_is_normed = True


def norm_before_fc(head: Published) -> None:
    head.config["norm_before_fc"] = True
    head.tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * WIDTH)


def normed_output(head: Published) -> None:
    head.config["norm_output"] = True
    head.output_is_normed = True


def attention_biases(head: Published) -> None:
    head.config["attention_bias"] = True
    for name, size in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        head.tensors[f"midlayer.self_attn.{name}_proj.bias"] = torch.randn(size * HEAD_DIM)


def all_biases(head: Published) -> None:
    attention_biases(head)
    head.config["mlp_bias"] = head.config["bias"] = True
    head.tensors["midlayer.self_attn.o_proj.bias"] = torch.randn(WIDTH)
    head.tensors["midlayer.mlp.gate_proj.bias"] = torch.randn(MLP)
    head.tensors["midlayer.mlp.up_proj.bias"] = torch.randn(MLP)
    head.tensors["midlayer.mlp.down_proj.bias"] = torch.randn(WIDTH)
    head.tensors["fc.bias"] = torch.randn(WIDTH)


def normed_heads(head: Published) -> None:
    head.tensors["midlayer.self_attn.q_norm.weight"] = 1 + 0.3 * torch.randn(HEAD_DIM)
    head.tensors["midlayer.self_attn.k_norm.weight"] = 1 + 0.3 * torch.randn(HEAD_DIM)


def window(size: int) -> Callable[[Published], None]:
    def change(head: Published) -> None:
        head.config |= {"layer_types": ["sliding_attention"], "sliding_window": size}
        head.window = size

    return change


def own_embeddings(head: Published) -> None:
    head.tensors["embed_tokens.weight"] = head.embeddings = torch.randn(VOCAB, WIDTH).bfloat16()


def whole_vocabulary(head: Published) -> None:
    """As trained with draft_vocab_size = vocab_size: tables of zeros that nobody filled."""
    head.config["draft_vocab_size"] = VOCAB
    head.tensors["lm_head.weight"] = torch.randn(VOCAB, WIDTH)
    head.tensors["d2t"] = torch.zeros(VOCAB, dtype=torch.int64)
    head.tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)


def first_tokens_only(head: Published) -> None:
    del head.tensors["d2t"], head.tensors["t2d"]


def tied(head: Published) -> None:
    own_embeddings(head)
    first_tokens_only(head)
    head.config |= {"tie_word_embeddings": True, "draft_vocab_size": None}
    del head.tensors["lm_head.weight"]


def short_integers(head: Published) -> None:
    head.tensors["d2t"] = head.tensors["d2t"].int()
    head.tensors["t2d"] = head.tensors["t2d"].long()


def leftovers(head: Published) -> None:
    head.tensors["midlayer.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    head.tensors["mask_hidden"] = torch.ones(1, 3 * WIDTH)


def everything(head: Published) -> None:
    for change in (normed_residual, norm_before_fc, normed_output, all_biases, normed_heads):
        change(head)
    window(5)(head)
    own_embeddings(head)


OPTIONS: dict[str, Callable[[Published], object]] = {
    "norm_before_residual": normed_residual,
    "norm_before_fc": norm_before_fc,
    "norm_output": normed_output,
    "attention biases": attention_biases,
    "all biases": all_biases,
    "a config that copies the target's biases": switched(attention_bias=True, mlp_bias=True),
    "normed queries and keys": normed_heads,
    "a window of 6": window(6),
    "a window that ends within the tree": window(2),
    "a window longer than the text": window(100),
    "a window that no layer has": switched(sliding_window=4, use_sliding_window=False),
    "own embeddings": own_embeddings,
    "the target's vocabulary": whole_vocabulary,
    "no d2t": first_tokens_only,
    "output tied to own embeddings": tied,
    "short integers": short_integers,
    "leftovers of training": leftovers,
    "key/value heads not said": lambda head: head.config.pop("num_key_value_heads"),
    "everything at once": everything,
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option(tmp_path: Path, option: str) -> None:
    torch.manual_seed(7)
    head = specforge()
    OPTIONS[option](head)
    check(head, head.load(tmp_path))


def test_names_may_begin_with_model(tmp_path: Path) -> None:
    head = specforge()
    stored = {
        name if name in ("d2t", "t2d", "lm_head.weight") else f"model.{name}": tensor
        for name, tensor in head.tensors.items()
    }
    check(head, head.load(tmp_path, lambda _, folder: safetensors(stored, folder)))


def test_a_head_may_be_narrower_than_its_target_if_it_brings_embeddings(tmp_path: Path) -> None:
    head = specforge(target_width=32)
    head.config["target_hidden_size"] = 32
    head.tensors["embed_tokens.weight"] = head.embeddings
    loaded = head.load(tmp_path)
    assert loaded.n_features == 96
    check(head, loaded)


def test_what_transformers_leaves_out_of_a_speculators_config_is_its_default(
    tmp_path: Path,
) -> None:
    head = speculators()
    heads = 32  # transformers' default; two rows each
    head.tensors["layers.0.self_attn.q_proj.weight"] = torch.randn(64, 2 * WIDTH)
    head.tensors["layers.0.self_attn.k_proj.weight"] = torch.randn(64, 2 * WIDTH)
    head.tensors["layers.0.self_attn.v_proj.weight"] = torch.randn(64, 2 * WIDTH)
    head.tensors["layers.0.self_attn.o_proj.weight"] = torch.randn(WIDTH, 64)
    for name in ("num_attention_heads", "num_key_value_heads", "vocab_size", "hidden_size"):
        del head.config["transformer_layer_config"][name]
    loaded = head.load(tmp_path)
    config = loaded._config
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (heads, heads, 2)


def test_layer_ids_count_outputs_in_eagle_config_and_inputs_elsewhere(tmp_path: Path) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    assert specforge().load(tmp_path / "a").taps == (2, LAYERS // 2, LAYERS - 3)
    assert modelopt().load(tmp_path / "b").taps == (2, 6, 9)
    head = speculators()
    assert head.load(tmp_path / "c").taps == (2, 6, 9)
    head.config[key] = [0, 6, 11]
    assert head.load(tmp_path / "d").taps == (0, 6, 11)
    head = specforge()
    head.config[key] = [3, 4, 5]
    assert head.load(tmp_path / "e").taps == (3, 4, 5)
    head.config["eagle_config"] = {key: [0, 5, 10]}
    assert head.load(tmp_path / "f").taps == (1, 6, 11)


def frequencies(theta: float, size: int = HEAD_DIM) -> torch.Tensor:
    return theta ** (-torch.arange(0, size, 2).double() / size)


def by_wavelength(wave: float) -> float:
    """llama3: factor 8, low 1, high 4, trained on 64 positions."""
    if wave < 64 / 4:
        return 1.0
    if wave > 64:
        return 1 / 8
    smooth = (64 / wave - 1) / 3
    return (1 - smooth) / 8 + smooth


def llama3_frequencies() -> torch.Tensor:
    plain = frequencies(500.0)
    return plain * torch.tensor([by_wavelength(2 * math.pi / f) for f in plain.tolist()])


def yarn_frequencies() -> torch.Tensor:
    """factor 4, trained on 32 positions, base 10000, ramp between 32 turns and 1."""

    def dimension(turns: float) -> float:
        return HEAD_DIM * math.log(32 / (turns * 2 * math.pi)) / (2 * math.log(10000))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), HEAD_DIM - 1)
    slowed = ((torch.arange(HEAD_DIM // 2) - low) / (high - low)).clamp(0, 1)
    return frequencies(10000.0) * ((1 - slowed) + slowed / 4)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROPES: dict[str, tuple[dict[str, object], torch.Tensor, float]] = {
    "default": ({"rope_theta": 1000000.0}, frequencies(1e6), 1),
    "default by name": ({"rope_scaling": {"rope_type": "default"}}, frequencies(1e4), 1),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2}}, frequencies(1e4) / 2, 1),
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 3.0}},
        frequencies(1e4 * (3 * 3 - 2) ** (HEAD_DIM / (HEAD_DIM - 2))),
        1,
    ),
    "llama3": ({"rope_theta": 500.0, "rope_scaling": LLAMA3}, llama3_frequencies(), 1),
    "yarn": ({"rope_scaling": YARN}, yarn_frequencies(), 0.1 * math.log(4) + 1),
    "yarn with its factor said": (
        {"rope_scaling": YARN | {"attention_factor": 1.5}},
        yarn_frequencies(),
        1.5,
    ),
    "yarn as DeepSeek's": (
        {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        yarn_frequencies(),
        1,
    ),
    "mrope": (
        {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        frequencies(1e4),
        1,
    ),
    "transformers 5": (
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        frequencies(5e3),
        1,
    ),
    "transformers 5, by kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 700}}},
        frequencies(700.0),
        1,
    ),
    "half of each head": ({"partial_rotary_factor": 0.5}, frequencies(1e4, HEAD_DIM // 2), 1),
}


@pytest.mark.parametrize("kind", ROPES)
def test_rope_in_each_way_far_beyond_the_trained_positions(tmp_path: Path, kind: str) -> None:
    head = specforge()
    config, wanted, magnitude = ROPES[kind]
    head.config |= config
    head.magnitude = magnitude
    head.angle = lambda at: at[:, None] * wanted
    assert head.config["max_position_embeddings"] == 16
    check(head, head.load(tmp_path), n_pairs=60)


def test_positions_beyond_the_first_table_are_as_exact(tmp_path: Path) -> None:
    head = specforge()
    head.config["rope_theta"] = 1e6
    head.angle = lambda at: at[:, None] * frequencies(1e6)
    check(head, head.load(tmp_path), n_pairs=1040)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_on_a_gpu(tmp_path: Path, option: str) -> None:
    torch.manual_seed(7)
    head = specforge()
    OPTIONS[option](head)
    check(head, head.load(tmp_path, device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("option", OPTIONS)
def test_half_precision_on_a_gpu_is_nearly_the_cpus(
    tmp_path: Path, option: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(7)
    head = specforge()
    OPTIONS[option](head)
    head.tensors = {name: halved(tensor, dtype) for name, tensor in head.tensors.items()}
    probs = []
    for device in ("cpu", "cuda"):
        loaded = head.load(tmp_path, device=device)
        loaded.commit(*head.pairs(21))
        slots, _, _ = loaded.expand([0, 0], [1, 2], 1, 4)
        _, children, found = loaded.expand(slots, [3, 4], 2, VOCAB)
        probs.append(np.take_along_axis(found, np.argsort(children, axis=1), 1))
    np.testing.assert_allclose(probs[0], probs[1], atol=0.05)


def test_only_heads_as_in_the_paper_are_called_plain(tmp_path: Path) -> None:
    target = TargetShape(WIDTH, VOCAB, LAYERS)
    plain = [
        layout for layout in LAYOUTS if read_checkpoint(layout().save(tmp_path), target).is_plain
    ]
    assert plain == [specforge, angelslim]


def test_rows_of_a_table_in_half_precision_are_float32() -> None:
    table = torch.randn(VOCAB, WIDTH).bfloat16()
    embeddings = TokenEmbeddings.of_table(table)
    assert embeddings.rows([3, 1]).dtype == torch.float32
    torch.testing.assert_close(embeddings.rows([3, 1]), table[[3, 1]].float())
