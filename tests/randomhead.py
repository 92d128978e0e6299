"""Random EAGLE-3 checkpoints of any shape, written as published heads are."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings

VOCAB, DRAFT_VOCAB, LAYERS = 60, 40, 8


@dataclass
class Checkpoint:
    """A random head in memory; `save` writes it as published heads are."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    embeddings: torch.Tensor

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.tensors, folder / "model.safetensors")
        return folder

    def load(self, folder: Path, **target: int) -> Eagle3Head:
        shape = {"hidden_size": self.width, "vocab_size": VOCAB, "n_layers": LAYERS} | target
        return Eagle3Head.load(
            self.save(folder),
            embeddings=TokenEmbeddings.of_table(self.embeddings),
            target=TargetShape(**shape),
        )

    @property
    def width(self) -> int:
        return int(self.config["hidden_size"])

    def pairs(self, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        features = torch.randn(n, 3 * self.width, generator=random)
        return features, torch.randint(0, VOCAB, (n,), generator=random)


def make_checkpoint(
    seed: int = 0, width: int = 24, heads: int = 4, kv_heads: int = 2, head_dim: int = 8
) -> Checkpoint:
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * 1.5 / math.sqrt(columns)

    def norm() -> torch.Tensor:
        return 1 + 0.3 * torch.randn(width, generator=random)

    drafted = torch.randperm(VOCAB, generator=random)[:DRAFT_VOCAB].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[drafted] = True
    tensors = {
        "fc.weight": matrix(width, 3 * width),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "midlayer.self_attn.q_proj.weight": matrix(heads * head_dim, 2 * width),
        "midlayer.self_attn.k_proj.weight": matrix(kv_heads * head_dim, 2 * width),
        "midlayer.self_attn.v_proj.weight": matrix(kv_heads * head_dim, 2 * width),
        "midlayer.self_attn.o_proj.weight": matrix(width, heads * head_dim),
        "midlayer.mlp.gate_proj.weight": matrix(2 * width, width),
        "midlayer.mlp.up_proj.weight": matrix(2 * width, width),
        "midlayer.mlp.down_proj.weight": matrix(width, 2 * width),
        "norm.weight": norm(),
        "lm_head.weight": matrix(DRAFT_VOCAB, width) * 2,
        "d2t": drafted - torch.arange(DRAFT_VOCAB),
        "t2d": known,
    }
    config = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
    }
    return Checkpoint(config, tensors, torch.randn(VOCAB, width, generator=random))
