"""A model in a larger shape computes what the small one does, and routes as it should."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from conftest import Outcome
from gguf import GGMLQuantizationType as Type
from test_tinymodel import decode, loaded, read_weights
from tinymodel import write_dense
from tinytarget import target_forward, vocabulary

from specfit.app.scale_model import main
from specfit.backend.model import Model
from specfit.backend.plan import Placement
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info
from specfit.models.scaling import scale
from specfit.models.scaling.head import scaled_head
from specfit.models.scaling.routing import HiddenStates, routing_stats, union_targets
from specfit.models.scaling.scale import write_scaled
from specfit.models.scaling.shape import Shape, changed, default_taps, place_heads, place_layers
from specfit.models.scaling.source import SourceModel, write_texts
from specfit.models.scaling.storage import Noise, n_bytes, stored, tensor_type

LAYERS = 4
SIZES = {"layers": 6, "embd": 128, "heads": 8, "kv_heads": 4, "expert_ff": 64}


@pytest.fixture(scope="module")
def small(exact_pair: tuple[Path, Path]) -> SourceModel:
    return SourceModel(exact_pair[0])


@pytest.fixture(scope="module")
def shape(small: SourceModel) -> Shape:
    return changed(Shape.of(small), {**SIZES, "vocab": small.n_vocab + 40})


@pytest.fixture(scope="module")
def large(small: SourceModel, shape: Shape, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scaled(small, tmp_path_factory.mktemp("large") / "l.gguf", shape, "F32").path


@pytest.fixture(scope="module")
def head(exact_pair: tuple[Path, Path]) -> Path:
    return exact_pair[1]


def logits(path: Path, ids: list[int]) -> np.ndarray:
    with loaded(path) as (_, context):
        return decode(context, ids, 0, read_gguf_info(path).n_vocab)


def some_text(seed: int = 0, length: int = 60) -> list[int]:
    return (
        vocabulary()
        .written[torch.randint(150, (length,), generator=torch.Generator().manual_seed(seed))]
        .tolist()
    )


def test_a_larger_shape_computes_the_same_logits(small: SourceModel, large: Path) -> None:
    """Within what float16 keys and values leave: one of them rounded otherwise is 4e-3."""
    ids = some_text()
    want, got = logits(small.path, ids), logits(large, ids)
    assert want[:, vocabulary().written.numpy()].std() > 2
    assert np.abs(got[:, : small.n_vocab] - want).max() < 0.02


def test_what_pads_the_vocabulary_is_not_taken_for_text(small: SourceModel, large: Path) -> None:
    """Cycles are calibrated by tokens that texts are made of: padding would share experts."""
    model = Model(read_gguf_info(large), Placement(0, 0))
    assert model.n_vocab == small.n_vocab + 40
    tokens = model.made_up(np.random.default_rng(0), 2000)
    assert len(tokens) == 2000 and len(set(tokens.tolist())) > 100
    assert tokens.max() < small.n_vocab
    assert not any(model.ends(token) for token in tokens.tolist())
    model.close()


def test_tokens_that_pad_the_vocabulary_are_never_chosen(small: SourceModel, large: Path) -> None:
    got = logits(large, some_text(1))
    assert got[:, small.n_vocab :].max() < got[:, : small.n_vocab].min() - 100


def test_float16_and_q8_0_files_stay_near(small: SourceModel, shape: Shape, tmp_path: Path) -> None:
    ids = some_text(2)
    want = logits(small.path, ids)
    for file_type, error in (("F16", 0.02), ("Q8_0", 0.2)):
        path = write_scaled(small, tmp_path / "x.gguf", shape, file_type).path
        difference = logits(path, ids)[:, : small.n_vocab] - want
        assert np.abs(difference).mean() < error


def test_experts_alone_can_grow(small: SourceModel, tmp_path: Path) -> None:
    larger = changed(Shape.of(small), {"expert_ff": 96, "heads": 8, "kv_heads": 4})
    path = write_scaled(small, tmp_path / "x.gguf", larger, "F32").path
    ids = some_text(4)
    assert np.abs(logits(path, ids) - logits(small.path, ids)).max() < 0.02


def test_the_file_says_what_it_is(small: SourceModel, shape: Shape, large: Path) -> None:
    info = read_gguf_info(large)
    assert (info.n_layers, info.n_embd, info.n_vocab) == (6, 128, small.n_vocab + 40)
    assert (info.n_experts, info.n_experts_used) == (8, 8)
    shapes = {tensor.name: tensor.shape for tensor in info.tensors}
    assert shapes["blk.5.attn_q.weight"] == (8 * small.head_dim, 128)
    assert shapes["blk.5.ffn_down_exps.weight"] == (8, 128, 64)
    assert info.metadata["qwen3moe.attention.layer_norm_rms_epsilon"] == 0
    tokens = gguf.GGUFReader(large).fields["tokenizer.ggml.tokens"].contents()
    assert len(set(tokens)) == shape.vocab


def test_files_depend_on_the_seed_alone(
    small: SourceModel, shape: Shape, large: Path, tmp_path: Path
) -> None:
    again = write_scaled(small, tmp_path / "again.gguf", shape, "F32")
    other = write_scaled(small, tmp_path / "other.gguf", shape, "F32", seed=1)
    assert again.path.read_bytes() == large.read_bytes()
    assert other.path.read_bytes() != large.read_bytes()
    assert again.silent == tuple(layer not in place_layers(LAYERS, 6) for layer in range(6))


def test_a_head_drafts_the_same(
    small: SourceModel, shape: Shape, large: Path, head: Path, tmp_path: Path
) -> None:
    larger = changed(shape, {"head_ff": 160, "draft_vocab": len(vocabulary().written) + 9})
    scaled_head(small, head, larger).write(tmp_path)
    ids = torch.tensor([some_text(3)])
    inputs, _ = target_forward(read_weights(small.path), ids, LAYERS)
    heads, drafts = [], []
    for path, folder in ((small.path, head), (large, tmp_path)):
        info = read_gguf_info(path)
        target = TargetShape.of(info)
        heads.append(Eagle3Head.load(folder, embeddings=TokenEmbeddings.load(info), target=target))
        features = torch.cat([inputs[tap][0] for tap in heads[0].taps], -1)
        if path == large:
            wide = torch.zeros(len(features), 3, 128)
            wide[..., :64] = features.unflatten(1, (3, 64))
            wide[..., -1] = (64 * small.epsilon) ** 0.5
            features = wide.flatten(1)
        heads[-1].commit(features[:-1], ids[0, 1:])
        first, chances = heads[-1].propose(8)
        below = heads[-1].expand([0, 0], first[:2], 1, 8)
        drafts.append((first, chances, *below[1:]))
    for want, got in zip(*drafts, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    assert heads[1].taps == tuple(place_layers(LAYERS, 6)[tap] for tap in heads[0].taps)


@pytest.mark.parametrize("n_source", [6, 8, 10, 13])
@pytest.mark.parametrize("n_layers", [24, 48, 61])
def test_layers_stay_on_their_side_of_the_taps(n_source: int, n_layers: int) -> None:
    places = place_layers(n_source, n_layers)
    assert places == sorted(set(places))
    assert places[0] == 0
    pairs = zip(default_taps(n_source), default_taps(n_layers), strict=True)
    for old, new in pairs:
        assert max(places[:old]) < new <= min(places[old:])


def test_heads_keep_their_groups() -> None:
    queries, keys = place_heads(4, 2, 12, 3, head_dim=1)
    assert queries.tolist() == [0, 1, 4, 5]
    assert keys.tolist() == [0, 1]


def test_the_source_is_computed_as_it_is_defined(small: SourceModel) -> None:
    texts = write_texts(small, n_texts=3, length=24, seed=5)
    assert len(np.unique(texts.tokens)) > 10
    inputs, _ = target_forward(read_weights(small.path), torch.from_numpy(texts.tokens), LAYERS)
    for layer in range(LAYERS - 1):
        want = inputs[layer + 1].numpy()
        assert np.abs(texts.residuals[layer] - want).max() < 1e-3


def test_routers_have_the_union_that_was_asked_for() -> None:
    """On hidden states of which some directions change slowly."""
    random = np.random.default_rng(0)
    speed = np.linspace(0, 0.97, 32)
    states = random.standard_normal((32, 120, 32))
    for place in range(1, 120):
        states[:, place] *= np.sqrt(1 - speed**2)
        states[:, place] += speed * states[:, place - 1]
    seen = HiddenStates(states.astype(np.float32), 1e-6)
    for union in (15.0, 18.0, 22.0):
        router, stats = seen.fitted(128, 8, union, random)
        assert abs(stats.union4 - union) < 0.5
        assert routing_stats(seen.routed(router, 8), 128) == stats


def test_added_layers_make_up_for_the_sources_own() -> None:
    targets = union_targets([26.0] * 10, 38, np.random.default_rng(0))
    assert np.isclose((targets.sum() + 260) / 48, 18.9)
    assert targets.min() >= 14.4
    assert union_targets([26.0] * 10, 2, np.random.default_rng(0)).min() >= 14.4


def test_routing_is_counted() -> None:
    selections = np.array([[[0, 1], [1, 2], [2, 3], [3, 4], [0, 1]]])
    stats = routing_stats(selections, 8)
    assert (stats.shared, stats.union4) == (0.75, 5.0)
    assert stats.covering == 4


def test_k_quants_follow_llama_cpps_recipe() -> None:
    kinds = [tensor_type("Q4_K_M", "ffn_down_exps", layer, 48) for layer in range(48)]
    assert kinds[:6] == [Type.Q6_K] * 6 and kinds[42:] == [Type.Q6_K] * 6
    assert kinds[6:12] == [Type.Q4_K, Type.Q4_K, Type.Q6_K] * 2
    assert tensor_type("Q4_K_M", "output", 0, 48) == Type.Q6_K
    assert tensor_type("Q4_K_M", "ffn_gate_inp", 0, 48) == Type.F32


@pytest.mark.parametrize(
    ("kind", "error"), [(Type.Q8_0, 0.01), (Type.Q6_K, 0.03), (Type.Q4_K, 0.1)]
)
def test_quantised_rows_can_be_read_back(kind: Type, error: float) -> None:
    values = np.random.default_rng(0).standard_normal((4, 512), dtype=np.float32)
    rows = stored(values, kind)
    assert rows.shape == (4, n_bytes(kind, 512))
    difference = gguf.dequantize(rows, kind) - values
    assert np.sqrt((difference**2).mean()) < error


def test_noise_is_of_weights_size_in_every_type() -> None:
    for kind in (Type.F16, Type.Q8_0, Type.Q4_K, Type.Q6_K):
        rows = Noise(np.random.default_rng(0)).rows(kind, 30, 512)
        values = rows.view(np.float16) if kind == Type.F16 else gguf.dequantize(rows, kind)
        assert values.shape == (30, 512)
        assert 0.015 < values.astype(np.float32).std() < 0.025


REFUSED = [
    (["--embd", "32"], "--embd 32 is less than the source's 64"),
    (["--layers", "8"], "need a wider model"),
    (["--embd", "128", "--heads", "9", "--kv-heads", "2"], "--heads 9 must be a multiple"),
    (["--embd", "128", "--kv-heads", "4"], "at least 2 times as many"),
    (["--embd", "256", "--expert-ff", "256", "--type", "Q4_K_M"], "no multiple of 256"),
    (["--embd", "100", "--type", "Q8_0"], "--embd 100 must be a multiple of 32"),
    (["--head", "there"], "--head and --head-out go together"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED)
def test_bad_shapes_are_refused_in_a_sentence(
    small: SourceModel,
    options: list[str],
    reason: str,
    tmp_path: Path,
    command: Callable[..., Outcome],
) -> None:
    ended = command(main, "-o", tmp_path / "x.gguf", "--source", small.path, *options)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert reason in ended.err
    assert not list(tmp_path.iterdir())


def test_a_head_is_refused_before_the_model_is_written(
    small: SourceModel, head: Path, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    options = ["-o", tmp_path / "x.gguf", "--source", small.path, "--head-out", tmp_path / "h"]
    ended = command(main, *options, "--embd", 32, "--head", head)
    assert (ended.code, "--embd 32 is less" in ended.err) == (2, True)
    ended = command(main, *options, "--embd", 128, "--head", tmp_path / "none")
    assert (ended.code, "no draft head" in ended.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_other_sources_are_refused(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    write_dense(tmp_path / "dense.gguf")
    ended = command(main, "-o", tmp_path / "x.gguf", "--source", tmp_path / "dense.gguf")
    assert (ended.code, "only a qwen3moe" in ended.err) == (2, True)
    ended = command(main, "-o", tmp_path / "x.gguf", "--source", tmp_path / "none.gguf")
    assert ended.code == 2


def test_a_full_disk_is_noticed_before(
    small: SourceModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., Outcome],
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=100_000))
    ended = command(main, "-o", tmp_path / "x.gguf", "--source", small.path, "--embd", "128")
    assert (ended.code, "its disk has" in ended.err) == (2, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (OSError(28, "full"), 2)])
def test_an_error_leaves_the_old_file(
    small: SourceModel,
    error: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., Outcome],
) -> None:
    out = tmp_path / "x.gguf"
    out.write_text("GGUF, old")

    def fails(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(scale, "write_tensors", fails)
    ended = command(main, "-o", out, "--source", small.path, "--embd", "128")
    assert ended.code == code
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]
    assert out.read_text() == "GGUF, old"


def test_the_command_writes_and_tells_the_routing(
    small: SourceModel, head: Path, tmp_path: Path, command: Callable[..., Outcome]
) -> None:
    out = tmp_path / "x.gguf"
    options = ["--layers", 6, "--embd", 128, "--head", head, "--head-out", tmp_path / "head"]
    ended = command(main, "-o", out, "--source", small.path, *options)
    assert ended.code == 0, ended.err
    assert "added layers (2): 8.0 (8.0 to 8.0) | 8.0" in ended.out
    assert read_gguf_info(out).n_layers == 6
    assert (tmp_path / "head" / "model.safetensors").exists()
