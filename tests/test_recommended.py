"""What is said of models that are not there is what llama.cpp says of such files."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
from math import prod

import llama_cpp.llama_cpp as llama
import pytest
from fullshape import write_full_shape

from specfit.app.recommended import (
    CONTEXT,
    EXPERTS,
    EXPERTS_USED,
    HEAD_DIM,
    QWEN3_30B_A3B,
    RECOMMENDED,
    head_tensors,
)
from specfit.backend import LoadOptions, library, placing
from specfit.backend.fit import fit
from specfit.backend.hostmemory import HostMemory
from specfit.backend.loading import plan_load
from specfit.backend.placing import head_bytes
from specfit.backend.plan import Machine, Placement, Wish, weights_of
from specfit.backend.probe import feature_bytes, probe
from specfit.backend.runtime import Runtime
from specfit.models.gguf_info import read_gguf_info

MIB = 1 << 20
BY_QUANT = {model.quant: model for model in RECOMMENDED}
# llama.cpp's numbers of these quantisations.
FILE_TYPES = {"Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q4_K_M": 15, "IQ4_XS": 30}
Q4_K_M = BY_QUANT["Q4_K_M"]
HOST = {"on_gpu": False, "split": False}


@pytest.fixture(scope="module")
def full_shape(tmp_path_factory):
    return read_gguf_info(write_full_shape(tmp_path_factory.mktemp("full") / "full.gguf"))


@pytest.mark.parametrize("quant", FILE_TYPES)
def test_every_quantisation_has_the_size_that_llama_cpp_would_give_it(full_shape, quant):
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.dry_run, params.allow_requantize = FILE_TYPES[quant], True, True
    library.start()
    with library.listening() as log:
        path = str(full_shape.path).encode()
        assert llama.llama_model_quantize(path, path + b".none", ctypes.byref(params)) == 0
    mebibytes = re.search(r"quant size += +([\d.]+) MiB", "".join(log))
    assert mebibytes is not None
    assert BY_QUANT[quant].weights.total / MIB == pytest.approx(float(mebibytes[1]), abs=0.01)


def test_a_described_model_is_the_file(full_shape):
    assert Q4_K_M.weights == weights_of(full_shape)
    assert full_shape.n_experts == EXPERTS
    assert Q4_K_M.size < full_shape.bytes < 1.001 * Q4_K_M.size


def test_the_sizes_are_those_of_the_published_files():
    published = {"Q8_0": 32.48, "Q6_K": 25.10, "Q5_K_M": 21.74, "Q4_K_M": 18.56, "IQ4_XS": 16.6}
    for quant, giga in published.items():
        assert BY_QUANT[quant].size / 1e9 == pytest.approx(giga, rel=0.004)
    sizes = [model.size for model in RECOMMENDED]
    assert sizes == sorted(sizes, reverse=True)


def test_three_billion_of_its_thirty_are_active():
    weights, shape = Q4_K_M.weights, QWEN3_30B_A3B
    experts = shape.layers * EXPERTS * 3 * shape.embd * shape.expert_ff
    assert 30.4e9 < weights.count < 30.6e9
    active = weights.count - experts * (1 - EXPERTS_USED / EXPERTS) - shape.vocab * shape.embd
    assert 2.9e9 < active < 3.4e9


def test_what_runs_beside_it_is_what_llama_cpp_reserves(full_shape):
    found = probe(full_shape, Placement(0, 48), Runtime(), CONTEXT, 1, drafting=True)
    needs = Q4_K_M.needs(**HOST)
    assert needs.kv == found.kv
    features = 2 * feature_bytes(full_shape, 3)
    assert needs.host - features == pytest.approx(found.host, rel=0.03)


def test_a_described_head_takes_what_such_a_file_takes(tmp_path):
    header, at = {}, 0
    for name, tensor in head_tensors(QWEN3_30B_A3B).items():
        size = prod(tensor["shape"]) * {"BF16": 2, "I64": 8, "BOOL": 1}[tensor["dtype"]]
        header[name] = {**tensor, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(tmp_path / "model.safetensors", 8 + len(text) + at)  # takes no room on the disk
    for on_gpu in (False, True):
        needs = Q4_K_M.needs(on_gpu=on_gpu, split=False)
        told = needs.gpu_head if on_gpu else needs.host_head
        assert told == head_bytes(tmp_path, CONTEXT, on_gpu=on_gpu)
    assert 300 * MIB < told < 500 * MIB  # published as 350 MB, in 16 bits


def test_it_is_placed_as_the_file_would_be(full_shape, monkeypatch):
    if library.supports_gpu():
        pytest.skip("the buffers of GPUs are looked up, not described")
    memory = HostMemory(60 << 30, 64 << 30)
    monkeypatch.setattr(placing, "host_memory", lambda: memory)
    real = plan_load(LoadOptions(model=full_shape.path, ctx=CONTEXT, head=None))
    needs = Q4_K_M.needs(**HOST)
    told = fit(Q4_K_M.weights, needs, Machine(memory.free, memory.total), Wish())
    assert told.placement == real.placement
    assert told.machine == real.machine
    without_head = told.host - needs.plain_head
    assert without_head == pytest.approx(real.host, rel=0.01)


def test_keys_and_values_are_of_four_heads_in_every_layer():
    cells = Q4_K_M.needs(**HOST).kv // (48 * 2 * 4 * HEAD_DIM * 2)
    assert CONTEXT < cells < 1.1 * CONTEXT
