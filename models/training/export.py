"""Writes a trained target as a GGUF file and a trained head as a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter, LlamaFileType, TokenType
from safetensors.torch import save_file

from specfit.models.training.head import Head
from specfit.models.training.recipe import Shape
from specfit.models.training.target import ROUTER, Target

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
# Greedy answers of a model this small repeat themselves.
RECOMMENDED = {"temp": 0.7, "min_p": 0.05}
END_OF_TEXT, END_OF_TURN = 0, 2
# Written like text, unlike the other special tokens.
_VISIBLE = ("<think>", "</think>")
_IN_CHECKPOINT = {
    "fc": "fc",
    "norm_embedded": "midlayer.input_layernorm",
    "norm_hidden": "midlayer.hidden_norm",
    "q": "midlayer.self_attn.q_proj",
    "k": "midlayer.self_attn.k_proj",
    "v": "midlayer.self_attn.v_proj",
    "o": "midlayer.self_attn.o_proj",
    "norm_post": "midlayer.post_attention_layernorm",
    "gate": "midlayer.mlp.gate_proj",
    "up": "midlayer.mlp.up_proj",
    "down": "midlayer.mlp.down_proj",
    "norm_out": "norm",
    "lm_head": "lm_head",
}


def write_target(
    model: Target, tokenizer_json: Path, out: Path, *, quantised: bool, name: str
) -> None:
    """Writes the model with its tokenizer.

    quantised: layers' matrices as Q4_0, embeddings and output as Q8_0; else all as F16. Norms and
    routers are float32 in both. The file appears when it is complete.
    """
    shape, unfinished = model.shape, out.with_name(out.name + ".part")
    writer = GGUFWriter(unfinished, "qwen3moe")
    writer.add_name(name)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(4 * shape.width)  # of dense layers, of which there are none
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.experts_used)
    writer.add_expert_feed_forward_length(shape.expert_ff)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_0 if quantised else LlamaFileType.MOSTLY_F16)
    if quantised:
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in RECOMMENDED.items():
        writer.add_float32(f"general.sampling.{key}", value)
    _add_tokenizer(writer, tokenizer_json, shape.vocab)
    for tensor_name, tensor in model.named_tensors().items():
        values = np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)
        kind = _type_of(tensor_name, values.ndim, quantised)
        writer.add_tensor(tensor_name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(out)


def write_head(head: Head, shape: Shape, folder: Path) -> None:
    """Writes the head in SpecForge's layout, float16. shape: the target's.

    Raises ValueError if a weight is beyond float16.
    """
    tensors: dict[str, torch.Tensor] = {}
    for attribute, name in _IN_CHECKPOINT.items():
        tensor = getattr(head, attribute).detach().cpu().half().contiguous()
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has values beyond float16")
        tensors[f"{name}.weight"] = tensor
    ids = head.target_ids.cpu()
    known = torch.zeros(shape.vocab, dtype=torch.bool)
    known[ids] = True
    tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": known}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(_head_config(head, shape), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")


def _head_config(head: Head, shape: Shape) -> dict[str, Any]:
    # SpecForge names layers by their outputs: the input of a layer is the output of the one before.
    outputs = [tap - 1 for tap in shape.taps]
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": head.gate.shape[0],
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": shape.context,
        "vocab_size": shape.vocab,
        "draft_vocab_size": len(head.target_ids),
        "target_hidden_size": shape.width,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": END_OF_TURN,
        "pad_token_id": END_OF_TEXT,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": outputs,
            "use_aux_hidden_state": True,
        },
    }


def _type_of(name: str, dimensions: int, quantised: bool) -> Type:
    if dimensions == 1 or ROUTER in name:
        return Type.F32
    if not quantised:
        return Type.F16
    return Type.Q4_0 if name.startswith("blk.") else Type.Q8_0


def _add_tokenizer(writer: GGUFWriter, tokenizer_json: Path, vocab: int) -> None:
    """The byte-level BPE of a tokenizer.json; ids that it does not use become unused tokens."""
    raw = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    tokens = [f"[PAD{i}]" for i in range(vocab)]
    types = [TokenType.UNUSED] * vocab
    for token, i in raw["model"]["vocab"].items():
        tokens[i], types[i] = token, TokenType.NORMAL
    for added in raw["added_tokens"]:
        visible = added["content"] in _VISIBLE
        tokens[added["id"]] = added["content"]
        types[added["id"]] = TokenType.USER_DEFINED if visible else TokenType.CONTROL
    merges = raw["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(END_OF_TEXT)
    writer.add_eos_token_id(END_OF_TURN)
    writer.add_pad_token_id(END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
