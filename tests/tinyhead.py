"""Trains a small EAGLE-3 head for the generated MoE model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tinytarget import EPS, N_EMBD, ROPE_BASE, rms, rope, split_heads, target_forward, vocabulary

TAPS = (1, 2, 3)
HEAD_HEADS, HEAD_KV_HEADS, HEAD_HEAD_DIM, HEAD_FF = 4, 2, 32, 128
TRAINING_STEPS, ROWS, ROW_TOKENS, BATCH = 40, 32, 48, 16


def write_head(folder: Path, model: Path, seed: int = 0) -> None:
    """Trains a head for a `write_float32_moe` model and writes its checkpoint.

    The draft vocabulary is what the model writes. Takes two seconds of one core.
    """
    reader = gguf.GGUFReader(model)
    target = {tensor.name: torch.from_numpy(np.array(tensor.data)) for tensor in reader.tensors}
    n_layers = reader.fields["qwen3moe.block_count"].contents()
    written = vocabulary().written
    head = _Head(target, written, torch.Generator().manual_seed(seed))
    _train(head, target, written, n_layers, seed)
    tensors = head.tensors()
    known = torch.zeros(len(target["token_embd.weight"]), dtype=torch.bool)
    known[written] = True
    tensors |= {"d2t": written - torch.arange(len(written)), "t2d": known}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": N_EMBD,
        "intermediate_size": HEAD_FF,
        "num_hidden_layers": 1,
        "num_attention_heads": HEAD_HEADS,
        "num_key_value_heads": HEAD_KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_BASE,
        "vocab_size": len(known),
        "draft_vocab_size": len(written),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in TAPS]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / "model.safetensors")


class _Head:
    """The head's layer over whole sequences, started so that it repeats the token's embedding.

    Every query matches the key of its own embedding, values are embeddings, and the output matrix
    is the target's: before training this predicts what follows the present token by itself.
    """

    def __init__(
        self, target: dict[str, torch.Tensor], written: torch.Tensor, random: torch.Generator
    ) -> None:
        inner, kv_inner = HEAD_HEADS * HEAD_HEAD_DIM, HEAD_KV_HEADS * HEAD_HEAD_DIM
        shared = HEAD_HEADS // HEAD_KV_HEADS

        def small(rows: int, columns: int, scale: float = 0.05) -> torch.Tensor:
            return torch.randn(rows, columns, generator=random) * scale / math.sqrt(columns)

        match = small(kv_inner, N_EMBD, 1.3).view(HEAD_KV_HEADS, 1, HEAD_HEAD_DIM, N_EMBD)
        self.q, self.k = small(inner, 2 * N_EMBD), small(kv_inner, 2 * N_EMBD)
        self.q.view(HEAD_KV_HEADS, shared, HEAD_HEAD_DIM, -1)[..., :N_EMBD] += match
        self.k.view(HEAD_KV_HEADS, 1, HEAD_HEAD_DIM, -1)[..., :N_EMBD] += match
        self.v, self.o = small(kv_inner, 2 * N_EMBD), small(N_EMBD, inner)
        same = torch.eye(kv_inner, N_EMBD)
        self.v[:, :N_EMBD] += same
        self.o.view(N_EMBD, HEAD_KV_HEADS, shared, -1).add_(
            same.T.reshape(N_EMBD, HEAD_KV_HEADS, 1, -1) / shared
        )
        self.fc = small(N_EMBD, 3 * N_EMBD, 0.2)
        self.gate, self.up = small(HEAD_FF, N_EMBD, 1.0), small(HEAD_FF, N_EMBD, 1.0)
        self.down = small(N_EMBD, HEAD_FF, 0.5)
        self.output = target["output.weight"][written].clone()
        self.parameters = [tensor.requires_grad_() for tensor in vars(self).values()]

    def layer(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        x = torch.cat([rms(embedded), rms(hidden)], -1)
        q = rope(split_heads(x @ self.q.T, HEAD_HEADS))
        k = rope(split_heads(x @ self.k.T, HEAD_KV_HEADS))
        v = split_heads(x @ self.v.T, HEAD_KV_HEADS)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        hidden = hidden + mixed.transpose(1, 2).flatten(2) @ self.o.T
        y = rms(hidden)
        return hidden + (F.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T

    def tensors(self) -> dict[str, torch.Tensor]:
        layer = {
            "self_attn.q_proj": self.q,
            "self_attn.k_proj": self.k,
            "self_attn.v_proj": self.v,
            "self_attn.o_proj": self.o,
            "mlp.gate_proj": self.gate,
            "mlp.up_proj": self.up,
            "mlp.down_proj": self.down,
        }
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        layer |= {name: torch.ones(N_EMBD) for name in norms}
        named = {f"midlayer.{name}.weight": tensor for name, tensor in layer.items()}
        named |= {"fc.weight": self.fc, "lm_head.weight": self.output}
        named["norm.weight"] = torch.ones(N_EMBD)
        return {name: tensor.detach() for name, tensor in named.items()}


def _train(
    head: _Head,
    target: dict[str, torch.Tensor],
    written: torch.Tensor,
    n_layers: int,
    seed: int,
) -> None:
    """Two levels deep: the second level is fed with the first one's hidden states."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        ids = sample_text(target, written, n_layers, random)
        inputs, logits = target_forward(target, ids, n_layers)
    features = torch.cat([inputs[tap] for tap in TAPS], -1)[:, :-1]
    embedded = target["token_embd.weight"][ids[:, 1:]]
    wanted = logits[:, 1:, written].softmax(-1)
    optimiser = torch.optim.AdamW(head.parameters, weight_decay=0.01)
    for step in range(TRAINING_STEPS):
        optimiser.param_groups[0]["lr"] = 5e-3 * (1 - step / TRAINING_STEPS)
        rows = torch.randperm(ROWS, generator=random)[:BATCH]
        hidden, loss = features[rows] @ head.fc.T, torch.zeros(())
        for level in range(2):
            hidden = head.layer(hidden, embedded[rows])
            drafted = (rms(hidden) @ head.output.T).log_softmax(-1)
            loss = loss - (wanted[rows] * drafted)[:, level:].sum(-1).mean()
            hidden = torch.cat([hidden[:, :1], hidden[:, :-1]], 1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def sample_text(
    target: dict[str, torch.Tensor],
    written: torch.Tensor,
    n_layers: int,
    random: torch.Generator,
) -> torch.Tensor:
    """int64 [ROWS, ROW_TOKENS]: random starts, continued by the target at temperature 0.8."""
    ids = written[torch.randint(len(written), (ROWS, 4), generator=random)]
    while ids.shape[1] < ROW_TOKENS:
        logits = target_forward(target, ids, n_layers)[1][:, -1]
        following = torch.multinomial((logits / 0.8).softmax(-1), 1, generator=random)
        ids = torch.cat([ids, following], 1)
    return ids
