"""The generated models are what the tests that use them rely on."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as llama
import numpy as np
import pytest
import torch
from headpairs import matching_chain
from tinyhead import TAPS
from tinymodel import write_dense, write_float32_moe
from tinytarget import target_forward, vocabulary

from specfit.backend import library
from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings
from specfit.models.gguf_info import read_gguf_info

N_LAYERS = 4


@pytest.fixture(scope="module")
def moe(exact_pair: tuple[Path, Path]) -> Path:
    return exact_pair[0]


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    return {t.name: torch.from_numpy(np.array(t.data)) for t in gguf.GGUFReader(path).tensors}


@contextmanager
def loaded(path: Path) -> Iterator[tuple[int, int]]:
    """A model and a context of llama.cpp on the CPU."""
    library.start()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    assert model
    parameters = llama.llama_context_default_params()
    parameters.n_ctx, parameters.n_threads, parameters.n_threads_batch = 256, 1, 1
    context = llama.llama_init_from_model(model, parameters)
    assert context
    try:
        yield model, context
    finally:
        llama.llama_free(context)
        llama.llama_model_free(model)


def decode(context: int, ids: list[int], start: int, n_vocab: int) -> np.ndarray:
    """Logits [len(ids), n_vocab] of tokens appended at position `start`."""
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i] = token, start + i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
    assert llama.llama_decode(context, batch) == 0
    rows = [
        np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (n_vocab,)).copy()
        for i in range(len(ids))
    ]
    llama.llama_batch_free(batch)
    return np.array(rows)


def greedy(context: int, prompt: list[int], n: int, n_vocab: int) -> list[int]:
    logits, ids = decode(context, prompt, 0, n_vocab)[-1], list(prompt)
    while len(ids) < len(prompt) + n:
        ids.append(int(logits.argmax()))
        logits = decode(context, ids[-1:], len(ids) - 1, n_vocab)[0]
    return ids


def test_llama_cpp_computes_the_same_model(moe: Path) -> None:
    info = read_gguf_info(moe)
    assert (info.n_experts, info.n_experts_used) == (8, 8)
    ids = vocabulary().written[torch.randint(200, (60,))].tolist()
    _, want = target_forward(read_weights(moe), torch.tensor([ids]), N_LAYERS)
    with loaded(moe) as (_, context):
        got = decode(context, ids, 0, info.n_vocab)
    # llama.cpp keeps keys and values in float16.
    assert np.abs(got - want[0].numpy()).max() < 0.05
    written = got[:, vocabulary().written.numpy()]
    assert 2 < written.std() < 8


def test_text_goes_on_and_is_tokenised(moe: Path) -> None:
    info, words = read_gguf_info(moe), vocabulary()
    text = b"<|im_start|>user\ntell me<|im_end|>\n"
    with loaded(moe) as (model, context):
        ids = (ctypes.c_int32 * 64)()
        vocab = llama.llama_model_get_vocab(model)
        n = llama.llama_tokenize(vocab, text, len(text), ids, 64, False, True)
        prompt = list(ids[:n])
        assert [words.tokens[i] for i in prompt[-7:-2]] == ["t", "el", "l", "Ġ", "me"]
        answer = greedy(context, prompt, 100, info.n_vocab)[n:]
        assert set(answer) <= set(words.written.tolist())
        assert len(set(answer)) > 20
        piece = ctypes.create_string_buffer(16)
        size = llama.llama_token_to_piece(vocab, answer[0], piece, 16, 0, False)
        assert piece.raw[:size].decode().replace(" ", "Ġ") == words.tokens[answer[0]]


def test_the_head_is_right_often_enough(exact_pair: tuple[Path, Path]) -> None:
    """Chains of three drafts along greedy text of the target: at least 1.5 tokens a cycle."""
    moe, folder = exact_pair
    info, weights = read_gguf_info(moe), read_weights(moe)
    head = Eagle3Head.load(
        folder, embeddings=TokenEmbeddings.load(info), target=TargetShape.of(info)
    )
    assert head.taps == TAPS
    cycles = committed = 0
    with loaded(moe) as (_, context):
        for start in range(4):
            llama.llama_memory_clear(llama.llama_get_memory(context), True)
            prompt = vocabulary().written[start * 40 : start * 40 + 5].tolist()
            ids = greedy(context, prompt, 100, info.n_vocab)
            inputs, _ = target_forward(weights, torch.tensor([ids]), N_LAYERS)
            features = torch.cat([inputs[tap][0] for tap in TAPS], -1)
            head.truncate(0)
            known = 5  # tokens of `ids` that the next draft may know
            while known < len(ids) - 4:
                done = head.n_pairs
                head.commit(features[done:known], ids[done + 1 : known + 1])
                accepted = matching_chain(head, ids[known + 1 :])
                cycles += 1
                committed += 1 + accepted
                known += 1 + accepted
    assert 1.5 <= committed / cycles < 3


def test_the_dense_model_runs(tmp_path: Path) -> None:
    path = tmp_path / "dense.gguf"
    write_dense(path)
    info = read_gguf_info(path)
    assert (info.architecture, info.n_experts) == ("qwen3", 0)
    with loaded(path) as (_, context):
        ids = greedy(context, [10, 20, 30], 60, info.n_vocab)
    assert len(set(ids)) > 10


def test_models_depend_on_the_seed_alone(moe: Path, tmp_path: Path) -> None:
    write_float32_moe(tmp_path / "same.gguf", 0)
    write_float32_moe(tmp_path / "other.gguf", 1)
    assert (tmp_path / "same.gguf").read_bytes() == moe.read_bytes()
    assert (tmp_path / "other.gguf").read_bytes() != moe.read_bytes()
