"""Small random heads as each trainer publishes them, and the formula that they were trained with.

Names and configs follow SpecForge, AngelSlim, EAGLE, ModelOpt and speculators; `reference_logits`
computes plainly, over the published names, in float64 and with nothing of ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from specfit.models.eagle3 import Eagle3Head, TargetShape
from specfit.models.embeddings import TokenEmbeddings

VOCAB, DRAFT_VOCAB, LAYERS = 60, 40, 12
WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, EPS = 24, 4, 2, 8, 40, 1e-5

Write = Callable[[dict[str, torch.Tensor], Path], object]


@dataclass
class Published:
    """config, tensors: as published. The rest is what the trainer's code makes of them.

    layer: the prefix of the layer's names.
    angle: positions to RoPE's angles [n, rotated / 2]; magnitude: of rotated vectors.
    """

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    layer: str
    embeddings: torch.Tensor
    target_width: int = WIDTH
    residual_is_normed: bool = False
    output_is_normed: bool = False
    window: int = 10**9
    magnitude: float = 1.0
    angle: Callable[[torch.Tensor], torch.Tensor] = field(
        default=lambda at: at[:, None] * 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    )

    def save(self, folder: Path, write: Write | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        stored = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
        (write or safetensors)(stored, folder)
        return folder

    def load(self, folder: Path, write: Write | None = None, device: str = "cpu") -> Eagle3Head:
        return Eagle3Head.load(
            self.save(folder, write),
            device=device,
            embeddings=TokenEmbeddings.of_table(self.embeddings),
            target=TargetShape(self.target_width, VOCAB, LAYERS),
        )

    def pairs(self, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        features = 3 * torch.randn(n, 3 * self.target_width, generator=random)
        return features, torch.randint(0, VOCAB, (n,), generator=random)

    def __getitem__(self, name: str) -> torch.Tensor:
        for full in (name, f"{self.layer}{name}"):
            if full in self.tensors:
                return self.tensors[full].double()
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors or f"{self.layer}{name}" in self.tensors


def safetensors(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def pickled(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def sharded(kind: str) -> Write:
    """Writes two parts and their index; kind: "safetensors" or "bin"."""

    def write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
        stem = "model" if kind == "safetensors" else "pytorch_model"
        places = {}
        for part in (1, 2):
            name = f"{stem}-{part:05}-of-00002.{kind}"
            names = sorted(tensors)[part - 1 :: 2]
            some = {n: tensors[n] for n in names}
            if kind == "bin":
                torch.save(some, folder / name)
            else:
                save_file(some, folder / name)
            places |= dict.fromkeys(names, name)
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / f"{stem}.{kind}.index.json").write_text(json.dumps(index))

    return write


def specforge(seed: int = 0, layer: str = "midlayer.", target_width: int = WIDTH) -> Published:
    """SpecForge's layout; EAGLE itself and AngelSlim write the same names."""
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * 1.5 / math.sqrt(columns)

    def norm(size: int = WIDTH) -> torch.Tensor:
        return 1 + 0.3 * torch.randn(size, generator=random)

    drafted = torch.randperm(VOCAB, generator=random)[:DRAFT_VOCAB].sort().values
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[drafted] = True
    tensors = {
        "d2t": drafted - torch.arange(DRAFT_VOCAB),
        "t2d": known,
        f"{layer}self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, 2 * WIDTH),
        f"{layer}self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD_DIM),
        f"{layer}mlp.gate_proj.weight": matrix(MLP, WIDTH),
        f"{layer}mlp.up_proj.weight": matrix(MLP, WIDTH),
        f"{layer}mlp.down_proj.weight": matrix(WIDTH, MLP),
        f"{layer}hidden_norm.weight": norm(),
        f"{layer}input_layernorm.weight": norm(),
        f"{layer}post_attention_layernorm.weight": norm(),
        "norm.weight": norm(),
        "fc.weight": matrix(WIDTH, 3 * target_width),
        "lm_head.weight": matrix(DRAFT_VOCAB, WIDTH) * 2,
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": 999,  # published ones are wrong now and then
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "max_position_embeddings": 16,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
    }
    embeddings = torch.randn(VOCAB, WIDTH, generator=random)
    return Published(config, tensors, layer, embeddings, target_width)


def angelslim(seed: int = 1) -> Published:
    head = specforge(seed)
    head.config |= {"architectures": ["Eagle3LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    head.tensors = {n: halved(t, torch.bfloat16) for n, t in head.tensors.items()}
    return head


def eagle31(seed: int = 2) -> Published:
    """EAGLE 3.1: a norm for each tap, and normalised hidden states from level to level."""
    head = specforge(seed)
    head.config |= {"fc_norm": True, "norm_output": True}
    head.output_is_normed = True
    for tap in range(3):
        head.tensors[f"fc_norm.{tap}.weight"] = 1 + 0.3 * torch.randn(WIDTH)
    return head


def modelopt(seed: int = 3) -> Published:
    """NVIDIA's: the layer by its number, options in eagle_config, the target's whole vocabulary."""
    head = specforge(seed, layer="layers.0.")
    del head.tensors["d2t"], head.tensors["t2d"]
    head.tensors["lm_head.weight"] = torch.randn(VOCAB, WIDTH)
    head.tensors["input_norm.weight"] = 1 + 0.3 * torch.randn(3 * WIDTH)
    head.config |= {
        "draft_vocab_size": VOCAB,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [1, 5, 8],
            "use_aux_hidden_state": True,
            "norm_before_fc": True,
        },
    }
    return head


def speculators(seed: int = 4) -> Published:
    """RedHat's: transformers' defaults are left out of the layer's config."""
    head = specforge(seed, layer="layers.0.")
    own = torch.randn(VOCAB, WIDTH)
    head.tensors |= {
        "embed_tokens.weight": own,
        "verifier_norm.weight": torch.ones(WIDTH),
        "verifier_lm_head.weight": torch.ones(DRAFT_VOCAB, WIDTH),
    }
    head.config = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": None,
        "norm_before_residual": True,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"architectures": ["Qwen3MoeForCausalLM"], "name_or_path": "Qwen/any"},
        },
        "speculators_model_type": "eagle3",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": {
            "head_dim": HEAD_DIM,
            "hidden_size": WIDTH,
            "intermediate_size": MLP,
            "model_type": "llama",
            "num_attention_heads": HEADS,
            "num_hidden_layers": 1,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": EPS,
            "vocab_size": VOCAB,
        },
    }
    head.embeddings = own
    head.residual_is_normed = True
    return head


def halved(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def reference_logits(
    head: Published, features: torch.Tensor, tokens: torch.Tensor, chain: list[int]
) -> list[torch.Tensor]:
    """Logits of the last pair and of each pair that the drafted `chain` appends."""
    features = features.double()
    if "input_norm.weight" in head:
        features = rms(features) * head["input_norm.weight"]
    if "fc_norm.0.weight" in head:
        parts = features.chunk(3, -1)
        features = torch.cat([rms(p) * head[f"fc_norm.{i}.weight"] for i, p in enumerate(parts)], 1)
    hidden = linear(head, features, "fc")
    sequence, logits = tokens.tolist(), []
    for step in range(len(chain) + 1):
        output = decoder_layer(head, hidden, sequence)[-1:]
        normed = rms(output) * head["norm.weight"]
        table = "lm_head.weight" if "lm_head.weight" in head else "embed_tokens.weight"
        logits.append((normed @ head[table].T)[0])
        hidden = torch.cat([hidden, normed if head.output_is_normed else output])
        sequence = [*sequence, *chain[step : step + 1]]
    return logits


def decoder_layer(head: Published, hidden: torch.Tensor, sequence: list[int]) -> torch.Tensor:
    n = len(sequence)
    embedded = rms(head.embeddings.double()[sequence]) * head["input_layernorm.weight"]
    normed = rms(hidden) * head["hidden_norm.weight"]
    residual = normed if head.residual_is_normed else hidden
    x = torch.cat([embedded, normed], -1)
    q, k, v = (
        linear(head, x, f"self_attn.{name}_proj").view(n, -1, HEAD_DIM).transpose(0, 1)
        for name in "qkv"
    )
    if "self_attn.q_norm.weight" in head:
        q, k = rms(q) * head["self_attn.q_norm.weight"], rms(k) * head["self_attn.k_norm.weight"]
    q, k = rotate(head, q), rotate(head, k)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
    at = torch.arange(n)
    hidden_ones = (at[None] > at[:, None]) | (at[None] <= at[:, None] - head.window)
    scores = (q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)).masked_fill(hidden_ones, -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
    h = residual + linear(head, mixed, "self_attn.o_proj")
    y = rms(h) * head["post_attention_layernorm.weight"]
    gate, up = linear(head, y, "mlp.gate_proj"), linear(head, y, "mlp.up_proj")
    return h + linear(head, F.silu(gate) * up, "mlp.down_proj")


def linear(head: Published, x: torch.Tensor, name: str) -> torch.Tensor:
    result = x @ head[f"{name}.weight"].T
    return result + head[f"{name}.bias"] if f"{name}.bias" in head else result


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS)


def rotate(head: Published, x: torch.Tensor) -> torch.Tensor:
    angles = head.angle(torch.arange(x.shape[1]).double())
    half = angles.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = head.magnitude * angles.cos(), head.magnitude * angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


def check(head: Published, loaded: Eagle3Head, n_pairs: int = 21) -> None:
    """Drafts agree with the formula: at the root, and down two paths of a tree that share it."""
    features, tokens = head.pairs(n_pairs)
    loaded.commit(features[:8], tokens[:8])
    loaded.commit(features[8:], tokens[8:])
    paths = [[3, 17, 5, 41], [3, 9, 11, 2]]
    wanted = [reference_logits(head, features, tokens, path) for path in paths]
    compare(head, loaded.propose(9), wanted[0][0])
    slots = np.zeros(2, np.int32)
    for depth in range(1, 5):
        drafted = np.array([path[depth - 1] for path in paths])
        slots, children, probs = loaded.expand(slots, drafted, depth, 9)
        for at in range(2):
            compare(head, (children[at], probs[at]), wanted[at][depth])


def compare(head: Published, got: tuple[np.ndarray, np.ndarray], logits: torch.Tensor) -> None:
    ids = torch.arange(len(logits))
    if "d2t" in head.tensors:
        ids = ids + head.tensors["d2t"]
    assert_best(got, ids, logits, rtol=3e-4)


def assert_best(
    got: tuple[np.ndarray, np.ndarray], ids: torch.Tensor, logits: torch.Tensor, rtol: float
) -> None:
    """Tokens and probabilities that are the best; of two as good as equal, either may be first."""
    tokens, probs = got
    expected = logits.softmax(-1)
    by_token = dict(zip(ids.tolist(), expected.tolist(), strict=True))
    best = expected.topk(len(tokens)).values.numpy()
    np.testing.assert_allclose(probs, best, rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(probs, [by_token[t] for t in tokens.tolist()], rtol=rtol, atol=1e-7)
    assert len(set(tokens.tolist())) == len(tokens)
