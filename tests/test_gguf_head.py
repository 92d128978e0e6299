"""The head in llama.cpp against the one in PyTorch, which other tests hold to the formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from headpairs import assert_alike, in_llama, matching_chain, published_in_llama
from publishedheads import VOCAB, Published, angelslim, modelopt, specforge, speculators
from test_eagle3_layouts import OPTIONS

from specfit.backend import Engine, Sampling, Spec
from specfit.backend.context import Context
from specfit.backend.gguf_head import GgufHead
from specfit.backend.likeliest import likeliest, plainly
from specfit.models import bundled_head
from specfit.models.convert_head import Inexpressible
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings

POSITIONS = 200
# What llama.cpp's graph has no place for.
INEXPRESSIBLE = {
    "norm_output",
    "attention biases",
    "all biases",
    "normed queries and keys",
    "a window of 6",
    "a window that ends within the tree",
    "a window longer than the text",
    "everything at once",
}


@pytest.fixture(scope="module")
def text(bundled_engine: Engine) -> tuple[list[int], np.ndarray]:
    """Tokens that the bundled model wrote, and their features [n, 3 * width]."""
    engine, tokens = bundled_engine, []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = engine.prompt_tokens(messages)
        said = engine.generate(
            messages, max_tokens=100, spec=Spec.parse("off"), sampling=Sampling(temp=0.0)
        )
        tokens += [*prompt, *engine.model.tokenize("".join(said), **PLAIN)]
    engine.forget()
    context = engine.context
    context.tap(0, wanted=True)
    context.decode_prompt(tokens)
    features = context.features(len(tokens)).reshape(len(tokens), -1).copy()
    context.truncate(0)
    context.tap(0, wanted=False)
    return tokens, features


QUESTIONS = (
    "Why is the sky blue?",
    "Tell me about a fox.",
    "What is bread made of?",
    "How do plants grow?",
    "Write a story about a train.",
)
PLAIN = {"add_special": False, "parse_special": False}


@pytest.fixture(scope="module")
def reference(bundled_engine: Engine) -> Eagle3Head:
    info = bundled_engine.model.info
    return Eagle3Head.load(
        bundled_head(), embeddings=TokenEmbeddings.load(info), target=TargetShape.of(info)
    )


@pytest.fixture(scope="module")
def load(
    bundled_engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], GgufHead]]:
    """Loads the bundled head in a type."""
    heads: dict[str, GgufHead] = {}
    context: Context = bundled_engine.context

    def made(file_type: str) -> GgufHead:
        if file_type not in heads:
            out = tmp_path_factory.mktemp("head") / f"{file_type}.gguf"
            info = bundled_engine.model.info
            heads[file_type] = in_llama(bundled_head(), info, context, out, file_type)
        heads[file_type].truncate(0)
        return heads[file_type]

    yield made
    for head in heads.values():
        head.close()


@pytest.mark.parametrize(("file_type", "rtol"), [("F32", 1e-4), ("F16", 0.02)])
def test_the_ten_likeliest_tokens_are_the_references(
    load: Callable[[str], GgufHead],
    reference: Eagle3Head,
    text: tuple[list[int], np.ndarray],
    file_type: str,
    rtol: float,
) -> None:
    """At 200 positions; in F16 but for tokens that are as good as tied."""
    head, (tokens, features) = load(file_type), text
    same = 0
    reference.truncate(0)
    for at in range(POSITIONS):
        drafts = []
        for one in (head, reference):
            one.commit(features[at : at + 1], tokens[at + 1 : at + 2])
            one.begin_tree()
            drafts.append(one.propose(10))
        assert_alike(drafts[0], drafts[1], rtol)
        same += set(drafts[0][0]) == set(drafts[1][0])
    assert same == POSITIONS if file_type == "F32" else same >= 0.98 * POSITIONS


@pytest.mark.parametrize("file_type", ["F16", "Q8_0"])
def test_as_many_drafts_are_right_as_the_references(
    load: Callable[[str], GgufHead],
    reference: Eagle3Head,
    text: tuple[list[int], np.ndarray],
    file_type: str,
) -> None:
    """Mean acceptance length of three drafts in a row, by what the model wrote: within 2 %."""
    tokens, features = text
    means = []
    for head in (load(file_type), reference):
        head.truncate(0)
        lengths = []
        for at in range(len(tokens) - 5):
            head.commit(features[at : at + 1], tokens[at + 1 : at + 2])
            lengths.append(1 + matching_chain(head, tokens[at + 2 :]))
        means.append(np.mean(lengths))
    assert means[1] > 1.2
    assert means[0] == pytest.approx(means[1], rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_trees_are_the_references_whatever_was_committed_and_dropped_before(
    load: Callable[[str], GgufHead],
    reference: Eagle3Head,
    text: tuple[list[int], np.ndarray],
    seed: int,
) -> None:
    """Commits, truncations and trees with siblings on every level, at random."""
    rng, (tokens, features), heads = np.random.default_rng(seed), text, (load("F32"), reference)
    reference.truncate(0)
    for _ in range(12):
        done = reference.n_pairs
        if done > 100 or rng.random() < 0.2:
            done = int(rng.integers(0, done + 1))
        n = int(rng.integers(1, 80 if rng.random() < 0.3 else 5))
        for head in heads:
            head.truncate(done)
            head.commit(features[done : done + n], tokens[done + 1 : done + n + 1])
            head.begin_tree()
        grow_alike(rng, *heads)
        np.testing.assert_allclose(heads[0].states(0, 5), heads[1].states(0, 5), atol=0.02)


def grow_alike(rng: np.random.Generator, head: GgufHead, reference: Eagle3Head) -> None:
    """Grows one tree with both heads, by the reference's drafts, and compares every level."""
    first = head.propose(6), reference.propose(6)
    assert_alike(*first)
    slots, drafts = np.array([0]), first[1][0][None]
    for depth in range(1, 5):
        m = int(rng.integers(1, 9))
        parents, branch = rng.integers(0, len(slots), m), rng.integers(0, drafts.shape[1], m)
        grown = [
            one.expand(slots[parents], drafts[parents, branch], depth, 6)
            for one in (head, reference)
        ]
        np.testing.assert_array_equal(grown[0][0], grown[1][0])
        assert_alike(grown[0], grown[1])
        slots, drafts = grown[1][0], grown[1][1]


@pytest.mark.parametrize("layout", [specforge, angelslim, modelopt, speculators])
def test_published_layouts_draft_alike(tmp_path: Path, layout: Callable[[], Published]) -> None:
    draft_alike(layout(), tmp_path)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_computed_or_refused(tmp_path: Path, option: str) -> None:
    torch.manual_seed(7)
    head = specforge()
    OPTIONS[option](head)
    try:
        draft_alike(head, tmp_path)
    except Inexpressible as refusal:
        assert "which llama.cpp cannot compute." in str(refusal)
        computed = False
    else:
        computed = True
    assert computed == (option not in INEXPRESSIBLE)


def draft_alike(published: Published, folder: Path) -> None:
    rng = np.random.default_rng(0)
    with published_in_llama(published, folder) as head:
        reference = published.load(folder / "reference")
        features, tokens = published.pairs(40)
        for one in (head, reference):
            one.commit(features.numpy(), tokens.numpy())
        assert head.taps == reference.taps
        grow_alike(rng, head, reference)


def test_lines_draft_each_for_itself(tmp_path: Path) -> None:
    published = specforge()
    with published_in_llama(published, tmp_path, lines=3) as head:
        heads, references = head.copies(3), published.load(tmp_path / "r").copies(3)
        rng = np.random.default_rng(0)
        for cycle in range(6):
            for line, (one, other) in enumerate(zip(heads, references, strict=True)):
                if (cycle + line) % 3 == 0:
                    source = (line + 1) % 3
                    n = min(one.n_pairs, heads[source].n_pairs) // 2
                    one.adopt(heads[source], n)
                    other.adopt(references[source], n)
                    assert one.n_pairs == other.n_pairs == n
                features, tokens = published.pairs(2 + line, seed=cycle * 3 + line)
                one.commit(features.numpy(), tokens.numpy())
                other.commit(features, tokens)
            for one, other in zip(heads, references, strict=True):
                grow_alike(rng, one, other)


def test_more_paths_than_sequences_give_up_those_that_nobody_goes_on_from(tmp_path: Path) -> None:
    published = specforge()
    with published_in_llama(published, tmp_path) as head:
        reference = published.load(tmp_path / "r")
        features, tokens = published.pairs(3)
        for one in (head, reference):
            one.commit(features.numpy(), tokens.numpy())
        wide = np.arange(40) % VOCAB
        grown = [one.expand([0] * 40, wide, 1, 4) for one in (head, reference)]
        assert_alike(*grown)
        parents = np.repeat(grown[1][0][:20], 2)
        grown = [one.expand(parents, wide, 2, 4) for one in (head, reference)]
        assert_alike(*grown)
        with pytest.raises(ValueError, match="at most can be expanded"):
            head.expand(np.repeat(grown[0][0], 2), np.arange(80) % VOCAB, 3, 4)


def test_what_is_kept_is_restored(tmp_path: Path) -> None:
    published = specforge()
    features, tokens = published.pairs(90)
    drafts = []
    with published_in_llama(published, tmp_path / "a") as head:
        head.commit(features[:80].numpy(), tokens[:80].numpy())
        head.expand([0, 0], [1, 2], 1, 4)
        kept = head.kept()
        head.commit(features[80:].numpy(), tokens[80:].numpy())
        drafts.append(head.propose(5))
    with published_in_llama(specforge(), tmp_path / "b") as head:
        head.commit(features[:7].numpy(), tokens[:7].numpy())
        head.restore(kept)
        assert head.n_pairs == 80
        head.commit(features[80:].numpy(), tokens[80:].numpy())
        drafts.append(head.propose(5))
    np.testing.assert_array_equal(drafts[0][0], drafts[1][0])
    np.testing.assert_allclose(drafts[0][1], drafts[1][1], rtol=1e-5)


def test_parents_are_slots_of_the_level_before(tmp_path: Path) -> None:
    with published_in_llama(specforge(), tmp_path) as head:
        with pytest.raises(RuntimeError, match="commit a pair"):
            head.propose(2)
        features, tokens = specforge().pairs(3)
        with pytest.raises(ValueError, match="make no pairs"):
            head.commit(features.numpy(), tokens.numpy()[:2])
        head.commit(features.numpy(), tokens.numpy())
        for parents, depth in (([], 1), ([1], 1), ([-1], 1), ([0], 2)):
            with pytest.raises(ValueError, match="parents"):
                head.expand(parents, [1] * len(parents), depth, 2)


@pytest.mark.parametrize(("n", "k"), [(7, 3), (7, 9), (3000, 10), (3000, 1)])
def test_the_likeliest_are_found_with_a_compiler_and_without(n: int, k: int) -> None:
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal((5, 2 * n))).astype(np.float32)
    logits[1] = np.round(logits[1])  # ties
    logits[2] -= 1e4
    for ids in (None, np.sort(rng.choice(2 * n, n, replace=False)).astype(np.int32)):
        drafted = logits if ids is None else logits[:, ids]
        wanted = np.argsort(-drafted, axis=1, kind="stable")[:, :k]
        exact = np.exp(drafted.astype(float) - drafted.max(1, keepdims=True))
        exact /= exact.sum(1, keepdims=True)
        for found in (likeliest, plainly):
            places, probs = found(logits, ids, k)
            np.testing.assert_array_equal(places, wanted)
            np.testing.assert_allclose(probs, np.take_along_axis(exact, wanted, 1), rtol=1e-5)
