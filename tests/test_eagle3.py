"""The EAGLE-3 head against a plain forward pass that is written here, without cache or tree."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from publishedheads import assert_best
from randomhead import DRAFT_VOCAB, LAYERS, VOCAB, Checkpoint, make_checkpoint

from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.headweights import within


def reference_logits(
    checkpoint: Checkpoint, features: torch.Tensor, tokens: torch.Tensor, chain: list[int]
) -> list[torch.Tensor]:
    """Logits of the last pair and of each pair that the drafted `chain` appends.

    Every step runs the whole sequence anew with plain causal attention, in float64.
    """
    weights = {name: tensor.double() for name, tensor in checkpoint.tensors.items()}
    hidden = features.double() @ weights["fc.weight"].T
    sequence = tokens.tolist()
    logits = []
    for step in range(len(chain) + 1):
        output = reference_layer(checkpoint, weights, hidden, sequence)[-1:]
        logits.append(
            (rms(checkpoint, output) * weights["norm.weight"] @ weights["lm_head.weight"].T)[0]
        )
        hidden = torch.cat([hidden, output])
        sequence = [*sequence, *chain[step : step + 1]]
    return logits


def rms(checkpoint: Checkpoint, x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + checkpoint.config["rms_norm_eps"])


def reference_layer(
    checkpoint: Checkpoint, w: dict[str, torch.Tensor], hidden: torch.Tensor, sequence: list[int]
) -> torch.Tensor:
    config, n = checkpoint.config, len(sequence)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    embedded = checkpoint.embeddings.double()[sequence]
    x = torch.cat(
        [
            rms(checkpoint, embedded) * w["midlayer.input_layernorm.weight"],
            rms(checkpoint, hidden) * w["midlayer.hidden_norm.weight"],
        ],
        -1,
    )
    q, k, v = (
        (x @ w[f"midlayer.self_attn.{name}_proj.weight"].T).view(n, count, -1).transpose(0, 1)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    q, k = rope(q, config["rope_theta"]), rope(k, config["rope_theta"])
    k, v = (t.repeat_interleave(heads // kv_heads, 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
    h = hidden + mixed @ w["midlayer.self_attn.o_proj.weight"].T
    y = rms(checkpoint, h) * w["midlayer.post_attention_layernorm.weight"]
    gate, up = (y @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return h + (F.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T


def rope(x: torch.Tensor, theta: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[1]).double()[:, None] * theta ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def check(checkpoint: Checkpoint, got: tuple[np.ndarray, np.ndarray], logits: torch.Tensor) -> None:
    target_ids = torch.arange(DRAFT_VOCAB) + checkpoint.tensors["d2t"]
    assert_best(got, target_ids, logits, rtol=2e-4)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_committing_at_once_in_chunks_or_singly_is_the_same(
    tmp_path: Path, heads: int, kv_heads: int
) -> None:
    checkpoint = make_checkpoint(heads=heads, kv_heads=kv_heads)
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(23)
    for sizes in ([23], [7, 1, 12, 3], [1] * 23):
        head.truncate(0)
        done = 0
        for size in sizes:
            head.commit(features[done : done + size], tokens[done : done + size])
            done += size
            logits = reference_logits(checkpoint, features[:done], tokens[:done], [])
            check(checkpoint, head.propose(9), logits[0])
        assert head.n_pairs == 23


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_equals_each_of_its_paths_as_a_chain(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    checkpoint = make_checkpoint(seed=seed)
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(int(random.integers(1, 20)), seed)
    head.commit(features, tokens)
    # Levels of random width, with random parents and random tokens, some of them the same.
    paths: dict[int, list[int]] = {0: []}
    level = [0]
    for depth in range(1, 6):
        width = int(random.integers(1, 8))
        parents = random.choice(level, width)
        drafted = random.integers(0, VOCAB, width)
        slots, children, probs = head.expand(parents.astype(np.int32), drafted, depth, 5)
        for index, slot in enumerate(slots):
            paths[int(slot)] = [*paths[int(parents[index])], int(drafted[index])]
            logits = reference_logits(checkpoint, features, tokens, paths[int(slot)])
            check(checkpoint, (children[index], probs[index]), logits[-1])
        level = slots.tolist()


def test_a_large_tree_outgrows_the_first_buffers(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(1000)
    head.commit(features, tokens)
    parents, drafted = np.zeros(150, np.int32), np.arange(150) % VOCAB
    slots, _, _ = head.expand(parents, drafted, 1, 3)
    slots, children, probs = head.expand(slots, drafted[::-1].copy(), 2, 3)
    for index in (0, 77, 149):
        chain = [int(drafted[index]), int(drafted[149 - index])]
        logits = reference_logits(checkpoint, features, tokens, chain)
        check(checkpoint, (children[index], probs[index]), logits[-1])


def test_each_tree_starts_from_the_committed_pairs_alone(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(9)
    head.commit(features[:6], tokens[:6])
    slots, first, _ = head.expand([0, 0], [3, 4], 1, 4)
    head.expand(slots, [5, 6], 2, 4)
    head.begin_tree()
    again_slots, again, _ = head.expand([0, 0], [3, 4], 1, 4)
    np.testing.assert_array_equal(again_slots, [1, 2])
    np.testing.assert_array_equal(again, first)
    with pytest.raises(ValueError, match="slots 0 to 2"):
        head.expand([3], [5], 2, 4)
    # Committing overwrites the tree.
    head.commit(features[6:], tokens[6:])
    logits = reference_logits(checkpoint, features, tokens, [7])
    check(checkpoint, head.propose(5), logits[0])
    _, children, probs = head.expand([0], [7], 1, 5)
    check(checkpoint, (children[0], probs[0]), logits[1])


def test_truncating_and_committing_again_equals_a_fresh_head(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(30)
    other_features, other_tokens = checkpoint.pairs(30, seed=1)
    head.commit(other_features, other_tokens)
    head.expand([0], [1], 1, 2)
    head.truncate(11)
    assert head.n_pairs == 11
    with pytest.raises(RuntimeError, match="commit a pair"):
        head.propose(2)
    head.commit(features[:5], tokens[:5])
    mixed_features = torch.cat([other_features[:11], features[:5]])
    mixed_tokens = torch.cat([other_tokens[:11], tokens[:5]])
    logits = reference_logits(checkpoint, mixed_features, mixed_tokens, [2])
    check(checkpoint, head.propose(6), logits[0])
    _, children, probs = head.expand([0], [2], 1, 6)
    check(checkpoint, (children[0], probs[0]), logits[1])
    head.truncate(16)  # nothing to forget: the tree stays
    check(checkpoint, head.propose(6), logits[0])


def test_a_head_whose_cache_has_grown_can_take_over_another_text(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    head, other = checkpoint.load(tmp_path).copies(2)
    features, tokens = checkpoint.pairs(2300)
    for one in (head, other):
        one.commit(features, tokens)
    other.truncate(40)
    kept = other.kept()
    head.adopt(other, 40)
    head.commit(features[40:50], tokens[40:50])
    other.restore(kept)
    other.commit(features[40:50], tokens[40:50])
    logits = reference_logits(checkpoint, features[:50], tokens[:50], [])
    check(checkpoint, head.propose(8), logits[0])
    check(checkpoint, other.propose(8), logits[0])


def test_positions_go_beyond_the_trained_ones_and_prompts_beyond_one_chunk(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(heads=2, kv_heads=1)
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(2300)
    head.commit(features, tokens)
    logits = reference_logits(checkpoint, features, tokens, [8])
    check(checkpoint, head.propose(8), logits[0])
    _, children, probs = head.expand([0], [8], 1, 8)
    check(checkpoint, (children[0], probs[0]), logits[1])


def test_ties_go_to_the_lower_id_and_few_tokens_give_few_children(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    checkpoint.tensors["lm_head.weight"][10:] = checkpoint.tensors["lm_head.weight"][10]
    head = checkpoint.load(tmp_path)
    head.commit(*checkpoint.pairs(4))
    target_ids = np.arange(DRAFT_VOCAB) + checkpoint.tensors["d2t"].numpy()
    for k in range(1, DRAFT_VOCAB + 3):
        tokens, probs = head.propose(k)
        tied = [int(token) for token in tokens if token >= target_ids[10]]
        assert tied == target_ids[10 : 10 + len(tied)].tolist()
        assert len(tokens) == len(probs) == min(k, DRAFT_VOCAB)
        assert (np.diff(probs) <= 0).all()
    assert probs.sum() == pytest.approx(1)


def test_half_precision_checkpoints_are_computed_in_float32(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    for name, tensor in checkpoint.tensors.items():
        if tensor.is_floating_point():
            checkpoint.tensors[name] = tensor.bfloat16()
    head = checkpoint.load(tmp_path)
    features, tokens = checkpoint.pairs(5)
    head.commit(features, tokens)
    check(checkpoint, head.propose(9), reference_logits(checkpoint, features, tokens, [])[0])


def test_a_head_may_bring_its_own_embeddings(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    own = torch.randn(VOCAB, checkpoint.width)
    checkpoint.tensors["embed_tokens.weight"] = own
    head = checkpoint.load(tmp_path)
    checkpoint.embeddings = own
    features, tokens = checkpoint.pairs(5)
    head.commit(features, tokens)
    check(checkpoint, head.propose(9), reference_logits(checkpoint, features, tokens, [])[0])


def test_without_d2t_the_draft_vocabulary_is_the_targets(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    del checkpoint.tensors["d2t"], checkpoint.tensors["t2d"]
    head = checkpoint.load(tmp_path)
    head.commit(*checkpoint.pairs(3))
    assert head.propose(DRAFT_VOCAB)[0].max() == DRAFT_VOCAB - 1


def test_misuse_is_an_error(tmp_path: Path) -> None:
    checkpoint = make_checkpoint()
    head = checkpoint.load(tmp_path)
    with pytest.raises(RuntimeError, match="commit a pair"):
        head.expand([0], [1], 1, 2)
    with pytest.raises(ValueError, match="make no pairs"):
        head.commit(torch.zeros(2, 3 * checkpoint.width), [1])
    head.commit(*checkpoint.pairs(3))
    with pytest.raises(ValueError, match="depth 1"):
        head.expand([0], [1], 2, 2)
    with pytest.raises(ValueError, match="truncate"):
        head.truncate(-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cuda_agrees_with_the_cpu(tmp_path: Path, dtype: torch.dtype) -> None:
    checkpoint = make_checkpoint(width=64, heads=8, head_dim=16)
    checkpoint.tensors = {
        name: t.to(dtype) if t.is_floating_point() else t for name, t in checkpoint.tensors.items()
    }
    folder = checkpoint.save(tmp_path)
    results = []
    for device in ("cpu", "cuda"):
        head = Eagle3Head.load(
            folder,
            embeddings=TokenEmbeddings.of_table(checkpoint.embeddings),
            target=TargetShape(64, VOCAB, LAYERS),
            device=device,
        )
        head.commit(*checkpoint.pairs(700))
        tokens, _ = head.propose(DRAFT_VOCAB)
        slots, _, _ = head.expand([0, 0, 0], [1, 2, 3], 1, 4)
        _, children, probs = head.expand(slots[[2, 0]], [4, 5], 2, DRAFT_VOCAB)
        order = np.argsort(children, axis=1)
        results.append((tokens, np.take_along_axis(probs, order, 1)))
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    np.testing.assert_allclose(results[0][1], results[1][1], atol=tolerance)
    if dtype == torch.float32:
        np.testing.assert_array_equal(results[0][0], results[1][0])


def test_weights_beyond_half_precision_are_held_all_the_same():
    """Folded with the norm before them, those that forbid a token can be."""
    torch.manual_seed(1)
    weights, unit = torch.randn(7, 5), torch.randn(3, 5)
    weights[2, 4], unit[:, 4] = -1.6e7, 4e-4
    held, factor = within(weights, torch.float16)
    products = (unit * factor).half().float() @ held.half().float().T
    assert factor == 256
    assert torch.allclose(products, unit @ weights.T, rtol=2e-3, atol=2e-3)
    same, one = within(weights, torch.bfloat16)
    assert one == 1.0
    assert same is weights
