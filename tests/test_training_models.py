"""Training computes what llama.cpp and the draft head will run, and learns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from llama_cpp import Llama
from tinytarget import vocabulary

from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info
from specfit.models.training.export import write_head, write_target
from specfit.models.training.fake_quant import fake_q4_0, fake_q8_0
from specfit.models.training.fit import FitResult, endless, fit_target, rate_factor
from specfit.models.training.head import Head, draft_vocabulary, fit_head
from specfit.models.training.muon import Muon, orthogonalised
from specfit.models.training.recipe import TINY, Recipe
from specfit.models.training.rows import Rows
from specfit.models.training.target import Target

SHAPE = replace(TINY.shape, layers=6, kv_heads=1, experts=8, experts_used=8, context=256)
RECIPE = replace(
    TINY,
    shape=SHAPE,
    batch=8,
    warmup_steps=4,
    head_ff=64,
    head_vocab=128,
    head_steps=4,
    head_rate=1e-2,
    head_kept=(2, 5),
)
VOCAB = SHAPE.vocab
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
FAKES = [(gguf.GGMLQuantizationType.Q4_0, fake_q4_0), (gguf.GGMLQuantizationType.Q8_0, fake_q8_0)]


def quietly(_line: str) -> None:
    """No report."""


def ticking(seconds: float = 1.0) -> Callable[[], float]:
    """A clock that moves by as much at every look."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds
        return now

    return clock


def toy_rows(n: int, seed: int, length: int = 48) -> Rows:
    """Two speakers: 2, then noise; 3, then steps of 7 through the tokens from 16 to 79."""
    random = np.random.default_rng(seed)
    tokens = np.zeros((n, length), np.uint16)
    asked = length // 4
    tokens[:, 0] = 2
    tokens[:, 1:asked] = random.integers(100, 200, (n, asked - 1))
    tokens[:, asked] = 3
    start = random.integers(0, 64, (n, 1))
    tokens[:, asked + 1 :] = 16 + (start + 7 * np.arange(length - asked - 1)) % 64
    mask = np.zeros((n, length), np.uint8)
    mask[:, asked + 1 :] = 1
    fill = random.integers(length - 8, length + 1, n).astype(np.int32)
    return Rows(tokens, fill, mask)


def lively(quantised: bool = False, **sizes: int) -> Target:
    """A random model with logits that differ."""
    model = Target(replace(SHAPE, **sizes), quantised, seed=1)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.named_tensors().values():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
        model.output.mul_(10)
        for block in model.blocks:
            block.ffn_gate_inp.mul_(20)
    return model.requires_grad_(False)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from more, and spinning threads wait for other programs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = vocabulary()
    tokens = words.tokens[3:]
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model = {
        "vocab": {token: i for i, token in enumerate([*SPECIALS, *tokens])},
        "merges": [merge.split(" ") for merge in words.merges],
    }
    added = [{"id": i, "content": token} for i, token in enumerate(SPECIALS)]
    path.write_text(json.dumps({"model": model, "added_tokens": added}))
    return path


@pytest.fixture(scope="module")
def trained() -> Target:
    """A model that knows the toy language."""
    model = Target(SHAPE)
    fit(model, 1 / 60)
    return model


def fit(model: Target, tick: float, recipe: Recipe = RECIPE, **options: object) -> FitResult:
    """A second of a clock that moves by `tick` at every look."""
    settings = {"report": quietly, "clock": ticking(tick), **options}
    return fit_target(model, toy_rows(64, 0), toy_rows(16, 1), recipe, 1.0, **settings)


def llama_logits(path: Path, ids: list[int]) -> np.ndarray:
    model = Llama(str(path), n_ctx=128, n_threads=1, logits_all=True, verbose=False)
    model.eval(ids)
    logits = np.array(model.scores[: len(ids)])
    model.close()
    return logits


def some_ids(n: int = 40) -> list[int]:
    return np.random.default_rng(3).integers(5, 300, n).tolist()


# Quantisation


@pytest.mark.parametrize(("kind", "fake"), FAKES)
def test_fake_quantisation_gives_a_files_values_to_the_bit(
    kind: gguf.GGMLQuantizationType, fake: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    random = np.random.default_rng(0)
    weights = random.standard_normal((300, 4, 64)).astype(np.float32)
    weights *= 10.0 ** random.integers(-6, 4, (300, 1, 1))
    weights[0] = 0
    weights[1] = 1
    weights[2] = np.abs(weights[2])
    weights[3] = -np.abs(weights[3])
    weights[4, :, ::2], weights[4, :, 1::2] = 0.5, -0.5  # two largest, of either sign
    weights[5] = np.arange(64) / 16 - 2  # halves between steps
    weights[6] = 1e-9  # a scale below float16
    stored = gguf.dequantize(gguf.quantize(weights, kind), kind)
    assert np.array_equal(fake(torch.from_numpy(weights)).numpy(), stored)


@pytest.mark.parametrize(("_kind", "fake"), FAKES)
def test_gradients_pass_fake_quantisation_unchanged(
    _kind: gguf.GGMLQuantizationType, fake: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    weights = torch.randn(3, 64, requires_grad=True)
    wanted = torch.randn(3, 64)
    (fake(weights) * wanted).sum().backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad, wanted)


# Muon


@pytest.mark.parametrize("shape", [(5, 32, 8), (5, 8, 32), (2, 3, 8, 16)])
def test_muon_moves_every_matrix_by_a_nearly_orthogonal_one(shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=random)))
    assert float(singular.min()) > 0.5 and float(singular.max()) < 1.3
    assert abs(float(singular.mean()) - 1) < 0.2


def test_muon_treats_each_expert_as_a_matrix_of_its_own() -> None:
    gradients = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    stacked = torch.nn.Parameter(torch.zeros(4, 6, 3))
    single = torch.nn.Parameter(torch.zeros(1, 6, 3))
    stacked.grad, single.grad = gradients.clone(), gradients[2:3].clone()
    for parameter in (stacked, single):
        Muon([[parameter]], rate=0.1).step(1.0, momentum=0.9)
    assert torch.allclose(stacked[2], single[0], atol=1e-6)
    assert torch.linalg.svdvals(stacked.detach()).amax() < 0.1 * 2**0.5 * 1.3


# The target and its files


def test_llama_cpp_computes_the_same_logits(tokenizer: Path, tmp_path: Path) -> None:
    model, ids = lively(), some_ids()
    path = tmp_path / "model.gguf"
    write_target(model, tokenizer, path, quantised=False, name="Toy")
    ours = Target.from_gguf(path)
    logits = ours.logits(ours.hidden(torch.tensor([ids])).hidden)[0].detach().numpy()
    assert logits.std() > 0.5
    # llama.cpp rounds activations and the cache to float16.
    assert np.abs(llama_logits(path, ids) - logits).max() < 0.01


def test_llama_cpp_routes_to_the_same_experts(tokenizer: Path, tmp_path: Path) -> None:
    model, ids = lively(experts=16, experts_used=4), some_ids()
    path = tmp_path / "model.gguf"
    write_target(model, tokenizer, path, quantised=False, name="Toy")
    logits = model.logits(model.hidden(torch.tensor([ids])).hidden)[0].numpy()
    away = np.abs(llama_logits(path, ids) - logits).max(1)
    # An expert at a near-tie may flip, and moves what follows a little.
    assert np.median(away) < 0.01
    other = Target(replace(model.shape, experts_used=3))
    other.load_state_dict(model.state_dict())
    wrong = other.logits(other.hidden(torch.tensor([ids])).hidden)[0].detach().numpy()
    assert np.median(np.abs(wrong - logits).max(1)) > 0.15


def test_a_quantised_file_is_the_model_that_was_trained(tokenizer: Path, tmp_path: Path) -> None:
    model, ids = lively(quantised=True), some_ids()
    path = tmp_path / "model.gguf"
    write_target(model, tokenizer, path, quantised=True, name="Toy")
    read = Target.from_gguf(path)
    assert read.shape == model.shape
    tensors = read.named_tensors()
    for name, tensor in model.named_tensors().items():
        expected = tensor
        if tensor.ndim > 1 and "ffn_gate_inp" not in name:
            expected = fake_q4_0(tensor) if name.startswith("blk.") else fake_q8_0(tensor)
        assert torch.equal(tensors[name], expected), name
    batch = torch.tensor([ids])
    logits = model.logits(model.hidden(batch).hidden)[0].numpy()
    assert np.array_equal(logits, read.logits(read.hidden(batch).hidden)[0].detach().numpy())
    plain = Target(model.shape)
    plain.load_state_dict(model.state_dict())
    unrounded = plain.logits(plain.hidden(batch).hidden)[0].detach().numpy()
    # llama.cpp quantises activations to eight bits as well.
    away = np.abs(llama_logits(path, ids) - logits).mean()
    assert away < 0.05 * logits.std()
    assert away < 0.5 * np.abs(unrounded - logits).mean()


def test_a_file_has_the_bundled_ones_metadata(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_target(lively(), tokenizer, path, quantised=True, name="Toy")
    bundled = Path(__file__).parents[1] / "models" / "bundled"
    theirs = gguf.GGUFReader(next(bundled.glob("*.gguf"))).fields
    ours = gguf.GGUFReader(path).fields
    assert set(theirs) <= set(ours)
    for key in ("chat_template", "ggml.pre", "ggml.eos_token_id", "ggml.add_bos_token"):
        field = f"tokenizer.{key}"
        assert ours[field].contents() == theirs[field].contents()
    assert not list(tmp_path.glob("*.part"))


def test_a_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="not a qwen3moe"):
        Target.from_gguf(path)


# Training the target


def test_the_loss_falls(trained: Target) -> None:
    untrained = fit(Target(SHAPE), 1.0).held_out
    assert untrained > 5
    result = fit(trained, 0.5)
    # Of 47 tokens 11 are one of 100 and one is one of 64, which makes 1.17 nats.
    assert 1.1 < result.held_out < 1.8
    assert result.steps > 0 and result.tokens == result.steps * 8 * 48


def test_equal_seeds_train_equal_models() -> None:
    models = [Target(SHAPE) for _ in range(3)]
    results = [fit(model, 0.2, seed=seed) for model, seed in zip(models, (4, 4, 5), strict=True)]
    assert results[0] == results[1]
    assert results[0].held_out != results[2].held_out
    assert torch.equal(models[0].output, models[1].output)


def test_a_model_trained_as_quantised_keeps_its_loss_in_the_file(
    trained: Target, tokenizer: Path, tmp_path: Path
) -> None:
    model = Target(SHAPE, quantised=True)
    model.load_state_dict(trained.state_dict())
    result = fit(model, 1 / 8, own=toy_rows(16, 5), rate=0.2)
    path = tmp_path / "model.gguf"
    write_target(model, tokenizer, path, quantised=True, name="Toy")
    held_out = fit(Target.from_gguf(path), 10.0, replace(RECIPE, muon_rate=0.0, adam_rate=0.0))
    assert held_out.held_out == pytest.approx(result.held_out, abs=1e-4)


def test_own_rows_make_up_their_share_of_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    forward = Target.hidden

    def watched(self: Target, ids: torch.Tensor, taps: tuple[int, ...] = ()) -> object:
        seen.append(ids)
        return forward(self, ids, taps)

    monkeypatch.setattr(Target, "hidden", watched)
    own = toy_rows(16, 5)
    own.tokens[:, 0] = 4
    fit(Target(SHAPE), 0.5, replace(RECIPE, own_share=0.25), own=own)
    assert all(int((ids[:, 0] == 4).sum()) == 2 for ids in seen[:5])


def test_nothing_is_learned_from_what_lies_behind_a_rows_end() -> None:
    rows = toy_rows(8, 0)
    other = Rows(rows.tokens.copy(), rows.fill)
    behind = np.arange(rows.length)[None] >= rows.fill[:, None]
    other.tokens[behind] = 77
    model = Target(SHAPE)
    losses = [
        fit_target(
            model,
            each,
            each,
            replace(RECIPE, muon_rate=0.0, adam_rate=0.0),
            1.0,
            report=quietly,
            clock=ticking(10),
        ).held_out
        for each in (rows, other)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_every_row_comes_once_before_any_comes_twice() -> None:
    batches = endless(10, 4, torch.Generator().manual_seed(0))
    drawn = torch.cat([next(batches) for _ in range(5)])
    assert sorted(drawn[:10].tolist()) == sorted(drawn[10:].tolist()) == list(range(10))
    few = next(endless(3, 8, torch.Generator().manual_seed(0)))
    assert set(few.tolist()) == {0, 1, 2}


def test_rates_rise_hold_and_fall() -> None:
    recipe = replace(RECIPE, warmup_steps=10, decay_from=0.5)
    assert rate_factor(0, 0.0, recipe) == 0.1
    assert rate_factor(50, 0.5, recipe) == 1.0
    assert rate_factor(99, 0.75, recipe) == 0.5
    assert rate_factor(200, 1.0, recipe) == 0.01


def test_rows_that_cannot_be_mixed_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        fit(Target(SHAPE), 1.0, own=toy_rows(4, 0, length=32))
    with pytest.raises(ValueError, match="do not fit"):
        Rows(np.zeros((3, 4), np.uint16), np.zeros(2, np.int32))


def test_rows_come_back_from_disk(tmp_path: Path) -> None:
    rows = toy_rows(5, 0)
    rows.save(tmp_path / "rows.npz")
    read = Rows.load(tmp_path / "rows.npz")
    assert read.mask is not None and rows.mask is not None
    assert np.array_equal(read.tokens, rows.tokens) and np.array_equal(read.mask, rows.mask)
    assert read.n_tokens == int(rows.fill.sum())
    Rows(rows.tokens, rows.fill).save(tmp_path / "bare.npz")
    assert Rows.load(tmp_path / "bare.npz").mask is None


# The head


def test_a_written_head_drafts_what_was_trained(tokenizer: Path, tmp_path: Path) -> None:
    target = lively(kv_heads=2)
    model = tmp_path / "model.gguf"
    write_target(target, tokenizer, model, quantised=True, name="Toy")
    target = Target.from_gguf(model).requires_grad_(False)
    ids = torch.tensor([some_ids(20)])
    draft_ids = torch.arange(0, 400, 3)
    head = Head(target.shape, 96, draft_ids, seed=2).requires_grad_(False)
    head.lm_head.mul_(10)
    for parameter in head.parameters():
        parameter.copy_(parameter.half().float())  # as they are written
    write_head(head, target.shape, tmp_path / "head")

    info = read_gguf_info(model)
    drafting = Eagle3Head.load(
        tmp_path / "head", embeddings=TokenEmbeddings.load(info), target=TargetShape.of(info)
    )
    assert drafting.taps == target.shape.taps
    features = torch.cat(target.hidden(ids, target.shape.taps).taps, -1)

    # Steps over the whole row, as in training; of each, what it makes of position 11.
    at, n_steps = 11, 4
    hidden, fed = features @ head.fc.T, ids
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    trained = []
    for _ in range(n_steps):
        fed = torch.cat([fed[:, 1:], fed[:, :1]], 1)
        hidden = head.step(target.token_embd[fed], hidden, keys, values)
        trained.append(head.logits(hidden)[0, at].softmax(-1).numpy())

    drafting.commit(features[0, : at + 1], ids[0, 1 : at + 2])
    n = len(draft_ids)
    tokens, chances = drafting.propose(n)
    drafted = [chances[tokens.argsort()]]
    slot = 0
    for depth in range(1, n_steps):
        slots, tokens, chances = drafting.expand([slot], ids[0, at + 1 + depth, None], depth, n)
        slot = int(slots[0])
        drafted.append(chances[0][tokens[0].argsort()])
    assert np.ptp(trained[0]) > 0.02
    for ours, theirs in zip(trained, drafted, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5


def test_a_head_learns_to_draft(trained: Target) -> None:
    rows, kept = toy_rows(64, 3), list[tuple[int, int]]()

    def keep(step: int, head: Head) -> None:
        kept.append((step, len(head.target_ids)))

    def run(tick: float) -> tuple[float, ...]:
        result = fit_head(
            trained, rows, RECIPE, 1.0, report=quietly, keep=keep, clock=ticking(tick)
        )
        return result.accuracy

    early = run(1 / 5)
    late = run(1 / 80)
    assert len(late) == RECIPE.head_steps
    assert late[0] > 0.85 and late[3] > 0.6
    assert np.mean(late) > np.mean(early) + 0.2
    assert kept == [(2, 128), (5, 128)] * 2


def test_the_draft_vocabulary_is_that_of_answers() -> None:
    rows = toy_rows(64, 3)
    known, coverage = draft_vocabulary(rows, VOCAB, 69)
    assert known.tolist() == [*range(5), *range(16, 80)]
    assert coverage == 1.0
    fewer, part = draft_vocabulary(rows, VOCAB, 37)
    assert set(range(5)) <= set(fewer.tolist()) and 0.4 < part < 0.7


def test_a_head_with_weights_beyond_float16_is_not_written(tmp_path: Path) -> None:
    head = Head(SHAPE, 32, torch.arange(8))
    with torch.no_grad():
        head.fc[0, 0] = 1e6
    with pytest.raises(ValueError, match="beyond float16"):
        write_head(head, SHAPE, tmp_path)


def test_a_head_needs_to_know_what_the_answers_are(trained: Target) -> None:
    rows = toy_rows(8, 0)
    with pytest.raises(ValueError, match="mask"):
        fit_head(trained, Rows(rows.tokens, rows.fill), RECIPE, 1.0, report=quietly)
