"""Tree verification keeps the target's distribution, and this test can tell when it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chisquare
from tinymodel import write_float32_moe

from specfit.backend.context import Context
from specfit.backend.model import Model, Placement
from specfit.backend.sampling import Sampler, Sampling
from specfit.backend.verify import walk
from specfit.models.gguf_info import read_gguf_info
from specfit.planner import DraftTree

SAMPLING = Sampling(temp=1.0, top_k=4, top_p=1.0, min_p=0.0, seed=5)
DRAWS = 6000
Walk = Callable[..., tuple[list[int], list[int]]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("exact") / "target.gguf"
    write_float32_moe(path, seed=3)
    model = Model(read_gguf_info(path), Placement(0, 0))
    yield model
    model.close()


class Scene:
    """A prefix, what the target makes of it in plain decoding, and a tree verified behind it."""

    def __init__(self, model: Model) -> None:
        prefix = model.prompt_tokens([{"role": "user", "content": "one two three"}])
        self.plain = self._context(model, prefix[:-1])
        self.root = prefix[-1]
        self.first = self._top(self.plain, [self.root])
        self.second = {token: self._top(self.plain, [self.root, token]) for token in self.first}
        # Drafts: the first, third and fourth choice; below the first its second and third choice,
        # below the third its likeliest one.
        a, _, c, d = self.first
        below_a, below_c = list(self.second[a]), list(self.second[c])
        self.tree = DraftTree(
            np.array([-1, 0, 0, 0, 1, 1, 2], np.int32),
            np.array([self.root, a, c, d, below_a[1], below_a[2], below_c[0]], np.int32),
            np.array([1, 0.5, 0.3, 0.1, 0.4, 0.3, 0.9]),
        )
        self.verified = self._context(model, prefix[:-1])
        self.verified.decode_tree(self.tree)

    @staticmethod
    def _context(model: Model, prefix: list[int]) -> Context:
        context = Context(model, ctx=128, threads=1, drafting=True)
        context.decode_prompt(prefix)
        return context

    @staticmethod
    def _top(context: Context, tokens: list[int]) -> dict[int, float]:
        """Probabilities of the four likeliest tokens after `tokens`, decoded one by one."""
        start = context.n_past[0]
        for token in tokens:
            root = DraftTree.of_root(token)
            context.decode_tree(root)
            context.commit([[0]])
        logits = context.logits(0).astype(np.float64)
        context.truncate(start)
        best = np.argsort(-logits)[:4]
        chances = np.exp(logits[best] - logits[best].max())
        return dict(zip(best.tolist(), (chances / chances.sum()).tolist(), strict=True))

    def expected(self) -> dict[tuple[int, int], float]:
        return {(x, y): p * q for x, p in self.first.items() for y, q in self.second[x].items()}

    def draw(self, sampler: Sampler, a_walk: Walk) -> tuple[int, int]:
        """The next two tokens by tree verification, a second cycle where the first gives one."""
        _, tokens = a_walk(
            self.tree, lambda row: sampler.sample(self.verified, row), lambda _token: True
        )
        if len(tokens) < 2:
            start = self.plain.n_past[0]
            for token in (self.root, tokens[0]):
                root = DraftTree.of_root(token)
                self.plain.decode_tree(root)
                self.plain.commit([[0]])
            tokens.append(sampler.sample(self.plain, 0))
            self.plain.truncate(start)
        return tokens[0], tokens[1]


def p_value(model: Model, a_walk: Walk) -> float:
    """Of the next two tokens against the target's own distribution."""
    scene, sampler = Scene(model), Sampler(SAMPLING)
    seen = Counter(scene.draw(sampler, a_walk) for _ in range(DRAWS))
    expected = scene.expected()
    if set(seen) - set(expected):
        return 0.0
    return float(
        chisquare([seen[pair] for pair in expected], [DRAWS * p for p in expected.values()]).pvalue
    )


def test_two_tokens_have_the_targets_distribution(model: Model) -> None:
    assert p_value(model, walk) > 0.01


def walk_that_trusts_the_draft(tree, sample, goes_on):  # type: ignore[no-untyped-def]
    """Wrong on purpose: gives a rejected draft a second chance, as careless code would."""
    path, tokens = walk(tree, sample, goes_on)
    return (path, tokens) if len(path) > 1 else walk(tree, sample, goes_on)


def walk_that_reads_the_parent(tree, sample, goes_on):  # type: ignore[no-untyped-def]
    """Wrong on purpose: samples after a node from the logits of its parent."""
    return walk(tree, lambda node: sample(max(0, int(tree.parents[node]))), goes_on)


@pytest.mark.parametrize("broken", [walk_that_trusts_the_draft, walk_that_reads_the_parent])
def test_the_test_fails_for_a_broken_walk(model: Model, broken: Walk) -> None:
    assert p_value(model, broken) < 1e-6
