"""Decoding by the thousand computes what llama.cpp computes, and follows its scripts."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from tinytarget import SPECIALS, vocabulary

from specfit.models.errors import ModelFileError
from specfit.models.training.decode import END, NOTHING, Decoder, conversations
from specfit.models.training.kernels import attend, rope_table, write_cache
from specfit.models.training.networks import load_decoder_network
from specfit.models.training.recipe import Voice

WIDTH, HEADS, KV_HEADS, LAYERS = 48, 6, 2, 2
EXPERTS, USED, EXPERT_FF, FF = 16, 4, 32, 96
ENDS = SPECIALS.index("<|im_end|>")


def write_model(path: Path, architecture: str) -> None:
    """Random weights in float32, as converters lay them out."""
    random, words = np.random.default_rng(0), vocabulary()
    has_experts = architecture == "qwen3moe"
    head_dim = 32 if has_experts else WIDTH // HEADS
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-4)
    writer.add_rope_freq_base(500.0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words.tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words.tokens))
    writer.add_token_merges(words.merges)
    writer.add_eos_token_id(ENDS)

    def add(name: str, *shape: int) -> None:
        weights = random.standard_normal(shape, np.float32)
        scaled = weights / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + weights / 4
        if name.endswith(("attn_q", "attn_k")) and not has_experts:
            # The converter makes neighbours of the pairs that rotate together.
            heads = shape[0] // head_dim
            scaled = scaled.reshape(heads, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(shape)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(2 * scaled, np.float32))

    add("token_embd", len(words.tokens), WIDTH)
    add("output_norm", WIDTH)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        add(f"{at}attn_norm", WIDTH)
        add(f"{at}attn_q", HEADS * head_dim, WIDTH)
        add(f"{at}attn_k", KV_HEADS * head_dim, WIDTH)
        add(f"{at}attn_v", KV_HEADS * head_dim, WIDTH)
        add(f"{at}attn_output", WIDTH, HEADS * head_dim)
        add(f"{at}ffn_norm", WIDTH)
        if has_experts:
            add(f"{at}attn_q_norm", head_dim)
            add(f"{at}attn_k_norm", head_dim)
            add(f"{at}ffn_gate_inp", EXPERTS, WIDTH)
            add(f"{at}ffn_gate_exps", EXPERTS, EXPERT_FF, WIDTH)
            add(f"{at}ffn_up_exps", EXPERTS, EXPERT_FF, WIDTH)
            add(f"{at}ffn_down_exps", EXPERTS, WIDTH, EXPERT_FF)
        else:
            add(f"{at}ffn_gate", FF, WIDTH)
            add(f"{at}ffn_up", FF, WIDTH)
            add(f"{at}ffn_down", WIDTH, FF)
    if has_experts:
        add("output", len(words.tokens), WIDTH)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(USED)
        writer.add_expert_feed_forward_length(EXPERT_FF)
    else:
        writer.add_rope_dimension_count(head_dim)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_logits(path: Path, tokens: list[int]) -> np.ndarray:
    """Logits after each token, with a cache in float32."""
    f32 = gguf.GGMLQuantizationType.F32
    model = llama_cpp.Llama(
        str(path), n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False,
        type_k=f32, type_v=f32,
    )  # fmt: skip
    model.eval(tokens)
    scores = model.scores[: len(tokens)].copy()
    model.close()
    return scores


@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_logits_are_those_of_llama_cpp(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, architecture)
    network = load_decoder_network(path, 3, 32, "cpu", torch.float32)
    texts = torch.randint(len(vocabulary().tokens), (3, 20), generator=torch.manual_seed(1))
    # Row 2 lags behind, so that rows are at different positions.
    logits = torch.zeros(3, 20, len(vocabulary().tokens))
    for step in range(24):
        places = torch.tensor([step, step, step - 4]).clamp(0, 19)
        logits[range(3), places] = network.step(texts[range(3), places], places)
    for row in range(3):
        expected = llama_logits(path, texts[row].tolist())
        assert expected.std() > 0.5
        np.testing.assert_allclose(logits[row], expected, atol=1e-3)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, "qwen3")
    with pytest.raises(ModelFileError, match="is a qwen3; only llama and qwen3moe"):
        load_decoder_network(path, 1, 8, "cpu", torch.float32)


def test_a_row_sees_its_own_past_and_nothing_else() -> None:
    random = torch.manual_seed(0)
    rows, heads, kv_heads, head_dim, length = 2, 4, 2, 8, 6
    keys, values = torch.zeros(2, rows, kv_heads, length, head_dim)
    keys.fill_(7.0)  # what an earlier text left there
    values.fill_(7.0)
    rope, queries, given = rope_table(head_dim, 100.0, length, "cpu"), [], []
    for position in range(3):
        qkv = torch.randn(rows, (heads + 2 * kv_heads) * head_dim, generator=random)
        at = torch.full((rows,), position)
        queries.append(write_cache(qkv, keys, values, at, rope, None, 1e-6))
        given.append(qkv.view(rows, -1, head_dim)[:, heads + kv_heads :])
    mixed = attend(queries[-1], keys, values, torch.tensor([2, 0]))
    # One visible position: its value; three: a mean of theirs.
    first = given[0][1].repeat_interleave(heads // kv_heads, 0)
    torch.testing.assert_close(mixed[1], first)
    seen = torch.stack([value[0] for value in given])
    low, high = (x.repeat_interleave(heads // kv_heads, 0) for x in (seen.amin(0), seen.amax(0)))
    assert ((mixed[0] >= low) & (mixed[0] <= high)).all()


WORDS, STOP = 12, 11


class Network:
    """Stands for a network: its logits are looked up by the last token."""

    def __init__(self, table: torch.Tensor, rows: int, length: int) -> None:
        self.table, self.rows, self.length = table, rows, length
        self.device = torch.device("cpu")
        self.fed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def step(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.fed.append((tokens.clone(), positions.clone()))
        return self.table[tokens]


def chatter(stop: float = 1.0) -> torch.Tensor:
    """Any word after any, the end of turn with odds `stop` against each."""
    table = torch.zeros(WORDS, WORDS)
    table[:, STOP] = math.log(stop)
    return table


def script(*entries: int) -> list[int]:
    return [*entries, *[END] * (8 - len(entries))]


def decoder(network: Network, *scripts: list[int], seed: int = 0, **options: object) -> Decoder:
    given = {"voices": (Voice(1.0, 5), Voice(0.0, 3)), "min_p": 0.0} | options
    entries = np.array(scripts, np.int32)
    return Decoder(network, entries, end_of_turn=STOP, prefix=[1, 2], seed=seed, **given)


def test_forced_tokens_are_fed_and_turns_end_by_themselves_or_at_the_cap() -> None:
    talk = decoder(Network(chatter(), 4, 64), script(3, 4, -1, 5, -1), script(6, -1))
    ended = conversations(talk.run(60, 400))
    assert len(ended) > 100
    lengths = set()
    for one in ended:
        text = one.tokens.tolist()
        stops = [place for place, token in enumerate(text) if token == STOP]
        if len(stops) == 2:
            assert text[:2] == [3, 4] and text[stops[0] + 1] == 5
            turns = [text[2 : stops[0]], text[stops[0] + 2 : stops[1]]]
        else:
            assert text[0] == 6
            turns = [text[1 : stops[0]]]
        assert stops[-1] == len(text) - 1 and not one.cut
        for turn, stop in zip(turns, stops, strict=True):
            assert len(turn) <= 5 and (len(turn) == 5 or stop not in one.capped)
            lengths.add(len(turn))
        assert one.whole == (not len(one.capped))
    assert lengths == {0, 1, 2, 3, 4, 5}
    assert any(one.whole for one in ended) and any(len(one.capped) for one in ended)


def test_what_is_logged_is_what_is_fed_and_scripts_come_in_order() -> None:
    network = Network(chatter(), 3, 64)
    talk = decoder(network, *(script(3 + n, -1) for n in range(5)))
    # Cut anywhere, logs lose nothing and repeat nothing.
    logs = [talk.run(60, steps) for steps in (1, 7, 16, 40, 2, 34)]
    ended = [one.tokens.tolist() for log in logs for one in conversations(log)]
    talk.run(60, 1)  # which shows the network what the step before it decided
    # What the network was fed, from each start behind the prefix; the first step is the prefix.
    started: list[list[int]] = []
    of_row: dict[int, list[int]] = {}
    finished: list[list[int]] = []
    for tokens, positions in network.fed[1:]:
        for row in range(3):
            if positions[row] == 1:
                assert tokens[row] == 2
                finished += [of_row[row]] if row in of_row else []
                of_row[row] = []
                started.append(of_row[row])
            else:
                assert positions[row] == len(of_row[row]) + 2
                of_row[row].append(int(tokens[row]))
    # The last end of turn of a text is logged, and not fed.
    assert all(text[-1] == STOP for text in ended)
    assert len(finished) > 30
    assert sorted(finished) == sorted(text[:-1] for text in ended)
    assert [text[0] for text in started if text][:40] == [3 + n % 5 for n in range(40)]


def test_logs_are_whole_by_themselves() -> None:
    def made(*steps: int) -> list[np.ndarray]:
        talk = decoder(Network(chatter(), 4, 16), script(3, -1), script(4, -1, 5, -1))
        return [talk.run(60, n) for n in steps]

    (at_once,) = made(100)
    parts = made(33, 5, 62)
    texts = [[one.tokens.tolist() for one in conversations(log)] for log in (at_once, *parts)]
    assert sorted(texts[0]) == sorted(texts[1] + texts[2] + texts[3])
    # Columns can be taken apart.
    columns = [parts[2][:, :1], parts[2][:, 1:]]
    by_column = [one.tokens.tolist() for log in columns for one in conversations(log)]
    assert by_column == texts[3]
    assert (parts[1] & NOTHING).any() and len(parts[1]) > 5


def test_seeds_repeat() -> None:
    def log(seed: int) -> np.ndarray:
        return decoder(Network(chatter(), 4, 16), script(3, -1), seed=seed).run(60, 100)

    assert (log(3) == log(3)).all()
    assert (log(3) != log(4)).any()


def test_it_stops_in_time() -> None:
    assert decoder(Network(chatter(), 4, 16), script(3, -1)).run(0.0).shape == (0, 4)
    assert 0 < len(decoder(Network(chatter(), 4, 16), script(3, -1)).run(0.1)) < 10_000


def test_a_conversation_without_room_is_cut() -> None:
    # Two tokens of prefix in rows of eight: six behind it.
    talk = decoder(Network(chatter(0.01), 2, 8), script(3, -1), voices=(Voice(1.0, 50),))
    log = talk.run(60, 30)
    ended = conversations(log)
    assert {len(one.tokens) for one in ended if one.cut} == {6}
    assert any(one.cut for one in ended) and not any(one.whole for one in ended if one.cut)
    assert all(one.tokens[0] == 3 for one in ended)


def test_a_cold_voice_takes_the_likeliest_token() -> None:
    table = torch.randn(WORDS, WORDS, generator=torch.manual_seed(2))
    table[:, STOP] = -9
    talk = decoder(Network(table, 8, 32), script(3, -2))
    ended = conversations(talk.run(60, 60))
    expected = [3]
    for _ in range(3):
        expected.append(int(table[expected[-1]].argmax()))
    assert len(ended) > 50 and all(one.tokens.tolist() == [*expected, STOP] for one in ended)


def test_rows_that_begin_anew_write_what_the_model_alone_would(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, "qwen3moe")
    network = load_decoder_network(path, 2, 32, "cpu", torch.float32)
    scripts = np.array([[7, 8, -1, 9, -1, END], [10, -1, END, END, END, END]], np.int32)
    talk = Decoder(network, scripts, (Voice(0.0, 6),), 0.0, ENDS, [5, 6, 4], seed=0)
    ended = conversations(talk.run(60, 60))
    assert len(ended) >= 8
    texts = {(4, *one.tokens.tolist()) for one in ended}
    assert len(texts) == 2  # greedy: each script always has the same text
    for text in texts:
        best = llama_logits(path, [5, 6, *text]).argmax(1)[2:].tolist()
        given, said = [7, 8, 9] if text[1] == 7 else [10], 0
        for place, token in enumerate(text[1:]):
            if given and token == given[0] and said in (0, 7):
                given, said = given[1:], 0
            else:
                said += 1
                assert token == (best[place] if said < 7 else ENDS)


@pytest.mark.parametrize(("temperature", "min_p"), [(1.0, 0.0), (0.5, 0.0), (0.5, 0.2)])
def test_tokens_are_drawn_as_temperature_and_min_p_say(temperature: float, min_p: float) -> None:
    logits = torch.randn(WORDS, generator=torch.manual_seed(5)).double()
    logits[STOP] = -1.0
    chances = logits.softmax(0)
    chances[chances < min_p * chances.max()] = 0
    chances = chances ** (1 / temperature)
    chances = (chances / chances.sum()).numpy()
    network = Network(logits.float().expand(WORDS, -1), 64, 16)
    talk = decoder(network, script(-1), min_p=min_p, voices=(Voice(temperature, 100),))
    drawn = np.bincount((talk.run(60, 500) & 0xFFFF).ravel(), minlength=WORDS)
    n = drawn.sum()
    assert ((drawn == 0) == (chances == 0)).all()
    noise = np.sqrt(n * chances * (1 - chances)) + 1e-9
    assert (np.abs(drawn - n * chances) / noise).max() < 4.5


@pytest.mark.parametrize(
    ("scripts", "prefix", "reason"),
    [
        ([[3, -3, END]], [1], "voice 2 of 2"),
        ([[END, 3, -1]], [1], "something in each"),
        ([[3, -1]], [], "prefix of 0"),
        ([[3, -1]], [1] * 15, "no room in 16"),
    ],
)
def test_scripts_that_cannot_be_followed_are_refused(
    scripts: list[list[int]], prefix: list[int], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Decoder(
            Network(chatter(), 1, 16),
            np.array(scripts, np.int32),
            (Voice(1.0, 5), Voice(1.0, 5)),
            min_p=0.05,
            end_of_turn=STOP,
            prefix=prefix,
            seed=0,
        )
