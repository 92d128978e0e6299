"""Small generated models for tests, as GGUF files that llama.cpp loads.

`write_float32_moe` makes a `qwen3moe` model whose experts are all used (8 of 8), so that no
rounding difference can flip an expert and texts of different decoding orders must be equal. What is
left is the KV cache: in float16 the last bit of a key or value may round to another number, which
moves logits by up to 4e-3; with a float32 cache and flash attention off (it casts the cache to
float16 again) 1 and 2 to 60 rows at a time agree within 1e-5. The weights are random, made so that
the next token depends on the present one and, less, on all before it: text neither collapses nor is
noise, and one token dropped from the cache moves logits by 0.3 and more. `write_head` trains an
EAGLE-3 head for it, in seconds, so that drafts are accepted now and then (three greedy drafts: 1.6
to 2 tokens a cycle). `write_dense` makes a `qwen3` model without experts,
`write_recurrent` a `mamba` model. All of it depends on the
seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from tinyhead import write_head
from tinytarget import (
    CONTEXT,
    DENSE_FF,
    EPS,
    EXPERT_FF,
    HEAD_DIM,
    N_EMBD,
    N_EXPERTS,
    N_HEADS,
    N_KV_HEADS,
    ROPE_BASE,
    SPECIALS,
    make_weights,
    vocabulary,
)

__all__ = ["write_dense", "write_float32_moe", "write_head", "write_recurrent"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Change = Callable[[gguf.GGUFWriter], object]


def _unchanged(_writer: gguf.GGUFWriter) -> None:
    pass


def write_float32_moe(
    path: Path, seed: int = 0, n_layers: int = 4, change: Change = _unchanged
) -> None:
    """Writes the all-experts MoE model. change: of the values, before they are written."""
    weights = make_weights(seed, n_layers, N_EXPERTS)
    writer = _writer(path, "qwen3moe", f"All experts {seed}", n_layers)
    writer.add_expert_count(N_EXPERTS)
    writer.add_expert_used_count(N_EXPERTS)
    writer.add_expert_feed_forward_length(EXPERT_FF)
    change(writer)
    _finish(writer, weights)


def write_dense(path: Path, seed: int = 0, n_layers: int = 2, change: Change = _unchanged) -> None:
    """Writes a model without experts. change: of the values, before they are written."""
    writer = _writer(path, "qwen3", f"Dense {seed}", n_layers)
    change(writer)
    _finish(writer, make_weights(seed, n_layers, 0))


def write_recurrent(path: Path, seed: int = 0, n_layers: int = 2) -> None:
    """Writes a `mamba` model: of a text it keeps one state, which cannot be cut."""
    inner, state, rank, kernel = 2 * N_EMBD, 8, 4, 4
    random, n_vocab = torch.Generator().manual_seed(seed), len(vocabulary().tokens)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * scale / columns**0.5

    writer = _writer(path, "mamba", f"Recurrent {seed}", n_layers)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    weights = {
        "token_embd.weight": matrix(n_vocab, N_EMBD, N_EMBD**0.5),
        "output_norm.weight": torch.ones(N_EMBD),
        "output.weight": matrix(n_vocab, N_EMBD, 3.5),
    }
    for i in range(n_layers):
        layer = {
            "attn_norm.weight": torch.ones(N_EMBD),
            "ssm_in.weight": matrix(2 * inner, N_EMBD),
            "ssm_conv1d.weight": matrix(inner, kernel),
            "ssm_conv1d.bias": torch.zeros(inner),
            "ssm_x.weight": matrix(rank + 2 * state, inner, 2.0),
            "ssm_dt.weight": matrix(inner, rank),
            "ssm_dt.bias": torch.zeros(inner),
            "ssm_a": torch.full((inner, state), -0.02),  # so that it remembers for long
            "ssm_d": torch.zeros(inner),
            "ssm_out.weight": matrix(N_EMBD, inner, 2.0),
        }
        weights |= {f"blk.{i}.{name}": tensor for name, tensor in layer.items()}
    _finish(writer, weights)


def _writer(path: Path, architecture: str, name: str, n_layers: int) -> gguf.GGUFWriter:
    words = vocabulary()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(DENSE_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words.tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in SPECIALS else normal for token in words.tokens])
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(SPECIALS.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return writer


def _finish(writer: gguf.GGUFWriter, weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in weights.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
