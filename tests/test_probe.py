"""What is predicted is what llama.cpp then takes."""

from __future__ import annotations

import ctypes
import re
import sys

import llama_cpp.llama_cpp as llama
import psutil
import pytest
from fullshape import write_full_shape

from specfit.backend import Engine, LoadOptions, Sampling, Spec, SpecfitError, library
from specfit.backend.context import Context, context_params
from specfit.backend.cores import cores_of
from specfit.backend.loading import plan_load
from specfit.backend.model import Model, model_params
from specfit.backend.placing import head_bytes
from specfit.backend.plan import GIB, Gpu, Placement, weights_of
from specfit.backend.probe import feature_bytes, probe, read_log
from specfit.backend.runtime import Runtime
from specfit.models import bundled_head, bundled_model
from specfit.models.gguf_info import read_gguf_info
from specfit.models.scaling.shape import default_taps

MIB = 1 << 20
_BUFFER = re.compile(r"(\w+): +(\S+) +(model|output|KV|compute) buffer size = +([\d.]+) MiB")
SETTINGS = [
    {"ctx": 2048},
    {"ctx": 300, "lines": 1},
    {"ctx": 1024, "lines": 8},
    {"ctx": 2048, "lines": 16},
    {"ctx": 2048, "cache": ("q8_0", "q8_0")},
    {"ctx": 2048, "lines": 4, "cache": ("f32", "q4_0")},
    {"ctx": 2048, "drafting": False},
    {"ctx": 2048, "flash": "off"},
]


def allocated(log: list[str]) -> int:
    """Bytes that llama.cpp says it allocated; where it did so twice, the second time counts."""
    sizes: dict[tuple[str, str], float] = {}
    for line in log:
        if found := _BUFFER.search(line):
            sizes[found[2], found[3]] = float(found[4])
    return int(sum(sizes.values()) * MIB)


def options_of(setting: dict) -> LoadOptions:
    key, value = setting.get("cache", ("f16", "f16"))
    # Mapped, the file would count whole, and what is repacked for the processor once more.
    runtime = Runtime(key, value, setting.get("flash", "auto"), load_mode="none")
    names = ("ctx", "lines", "drafting")
    given = {name: value for name, value in setting.items() if name in names}
    return LoadOptions(threads=1, runtime=runtime, **given)


def error_of(setting: dict) -> float:
    """Of the predicted bytes, relative to those that llama.cpp takes to load and to decode."""
    options = options_of(setting)
    plan = plan_load(options)
    info, drafting = read_gguf_info(bundled_model()), options.drafting
    taps = default_taps(info.n_layers) if drafting else ()
    with library.listening() as log:
        model = Model(info, plan.placement, runtime=options.runtime)
        context = Context(
            model, ctx=options.ctx, threads=1, lines=options.lines, taps=taps, drafting=drafting
        )
        context.tap(0, wanted=drafting)
        context.decode_prompt([1, 2, 3])
        context.close()
        model.close()
    head = sum(part.host for part in plan.parts if part.name == "draft head")
    # Of the features that are handed out on the host llama.cpp says nothing.
    predicted = plan.host - head - feature_bytes(info, len(taps))
    return predicted / allocated(log) - 1


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_bundled_pair_takes_what_was_predicted(setting):
    assert abs(error_of(setting)) < 0.03


@pytest.fixture(scope="module")
def full_shape(tmp_path_factory):
    return read_gguf_info(write_full_shape(tmp_path_factory.mktemp("full") / "full.gguf"))


class _Breakdown(ctypes.Structure):
    """A std::map of libstdc++: the root of a red-black tree is behind `parent`."""

    _fields_ = (
        ("compare", ctypes.c_void_p),
        ("colour", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("parent", "left", "right")),
        ("count", ctypes.c_size_t),
    )


class _Node(ctypes.Structure):
    _fields_ = (
        ("colour", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("parent", "left", "right", "buffer_type")),
        *((name, ctypes.c_size_t) for name in ("model", "context", "compute")),
    )


def breakdown(path, placement: Placement, runtime: Runtime, ctx: int, lines: int) -> list[int]:
    """Weights, keys and values, buffers: llama.cpp's own count, for which it allocates nothing."""
    params, kept = model_params(placement, runtime)
    params.no_alloc, params.load_mode = True, llama.LLAMA_LOAD_MODE_NONE
    model = llama.llama_model_load_from_file(str(path).encode(), params)
    del kept
    context = llama.llama_init_from_model(model, context_params(runtime, ctx, lines, drafting=True))
    # A C++ function that returns a class takes the address of its place first.
    count = library.symbol(
        "_Z26llama_get_memory_breakdownPK13llama_context",
        restype=ctypes.c_void_p,
        argtypes=[ctypes.POINTER(_Breakdown), ctypes.c_void_p],
    )
    found = _Breakdown()
    count(ctypes.byref(found), context)
    sums, waiting = [0, 0, 0], [found.parent]
    while waiting:
        if address := waiting.pop():
            node = _Node.from_address(address)
            parts = (node.model, node.context, node.compute)
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
            waiting += [node.left, node.right]
    llama.llama_free(context)
    llama.llama_model_free(model)
    return sums


@pytest.mark.skipif(sys.platform != "linux", reason="reads a std::map as libstdc++ lays it out")
@pytest.mark.parametrize(
    ("ctx", "lines", "kind"),
    [(4096, 1, "f16"), (32768, 1, "f16"), (4096, 8, "f16"), (16384, 1, "q8_0")],
)
def test_the_full_shape_takes_what_was_predicted(full_shape, ctx, lines, kind):
    runtime = Runtime(cache_type_k=kind, cache_type_v=kind)
    placement = Placement(0, full_shape.n_layers)
    found = probe(full_shape, placement, runtime, ctx, lines, drafting=True)
    weights, kv, computing = breakdown(full_shape.path, placement, runtime, ctx, lines)
    assert weights_of(full_shape).total == pytest.approx(weights, rel=0.001)
    assert found.kv == pytest.approx(kv, rel=0.001)
    predicted = weights_of(full_shape).total + found.kv + found.host
    assert predicted == pytest.approx(weights + kv + computing, rel=0.03)


def test_what_a_full_shape_model_lacks_is_said_without_loading_it(full_shape, monkeypatch):
    memory = psutil.virtual_memory()._replace(available=10 * GIB, total=12 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(SpecfitError, match=r"17\.\d GiB .* 12\.0 GiB, .* too little; .*Q2_K"):
        plan_load(LoadOptions(model=full_shape.path))


def test_a_log_of_a_machine_with_gpus_is_read():
    log = """prepare_model_devices: using device CUDA0 (NVIDIA X) (0000:01:00.0) - 10000 MiB free
prepare_model_devices: using device CUDA1 (NVIDIA Y (a)) (0000:02:00.0) - 8000 MiB free
llama_context:  CUDA_Host  output buffer size =    37.09 MiB
llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB
llama_kv_cache: size =  408.00 MiB (  4352 cells,  48 layers, 64/1 seqs), K (f16):  204.00 MiB
sched_reserve:      CUDA0 compute buffer size =   304.00 MiB
sched_reserve:      CUDA1 compute buffer size =   100.00 MiB
sched_reserve:  CUDA_Host compute buffer size =    20.50 MiB
"""
    found = read_log(log.splitlines())
    assert found.gpus == (Gpu("CUDA0", 10000 * MIB), Gpu("CUDA1", 8000 * MIB))
    assert (found.kv, found.gpu) == (408 * MIB, 304 * MIB)
    assert found.host == int(57.59 * MIB)


def test_a_quantised_cache_without_flash_attention_is_refused_in_a_sentence():
    runtime = Runtime(cache_type_v="q8_0", flash_attn="off")
    with pytest.raises(SpecfitError, match="V cache requires flash"):
        plan_load(LoadOptions(ctx=512, runtime=runtime))


def test_drafts_are_verified_and_kept_in_a_quantised_cache():
    runtime = Runtime(cache_type_k="q8_0", cache_type_v="q4_0")
    options = LoadOptions(ctx=256, threads=1, cost_profile="streamed", runtime=runtime)
    with Engine.load(options) as engine:
        answer = engine.generate(
            [{"role": "user", "content": "Count to ten."}],
            sampling=Sampling(temp=0),
            max_tokens=40,
            spec=Spec.parse("eagle3:12:3:3"),
        )
        assert "".join(answer)
        # Were paths committed wrongly, the head would not be right this often.
        assert answer.report.means.mean_acceptance_length > 1.5


def test_gpu_layers_and_rpc_servers_are_refused_by_a_build_without():
    if library.supports_gpu():
        pytest.skip("this build has a GPU")
    with pytest.raises(SpecfitError, match="sees no GPU"):
        plan_load(LoadOptions(gpu_layers=3))
    with pytest.raises(SpecfitError, match=r"--main-gpu 2: llama.cpp sees no GPU$"):
        plan_load(LoadOptions(runtime=Runtime(main_gpu=2)))
    if not llama.llama_supports_rpc():
        with pytest.raises(SpecfitError, match="no RPC backend"):
            plan_load(LoadOptions(runtime=Runtime(rpc="localhost:50052")))


def test_a_head_is_as_large_as_its_file_says():
    path = bundled_head()
    stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    assert stored < head_bytes(path, 0, on_gpu=False) < 2.1 * stored
    assert head_bytes(path, 1000, on_gpu=True) > head_bytes(path, 0, on_gpu=True)
    assert head_bytes(path / "none", 0, on_gpu=True) == 0


def machine_of(folder, siblings, **files):
    """A /sys/devices: for each CPU the ones of its core."""
    cpus = folder / "system/cpu"
    for number, of_core in enumerate(siblings):
        place = cpus / f"cpu{number}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{of_core}\n")
    (cpus / "online").write_text(f"0-{len(siblings) - 1}\n")
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return folder


def test_threads_are_for_fast_physical_cores(tmp_path):
    pairs = ["0-1", "0-1", "2-3", "2-3"]
    plain = machine_of(tmp_path / "a", pairs)
    assert cores_of(plain, None) == 2
    assert cores_of(plain, {0, 1}) == 1  # of one core both halves
    hybrid = machine_of(tmp_path / "b", [*pairs, "4", "5"], cpu_core__cpus="0-3\n")
    assert cores_of(hybrid, None) == 2
    assert cores_of(hybrid, {4, 5}) == 2  # nothing else is allowed
    speeds = {f"system__cpu__cpu{i}__cpu_capacity": v for i, v in enumerate(("1024", "900", "400"))}
    assert cores_of(machine_of(tmp_path / "c", ["0", "1", "2"], **speeds), None) == 2
    assert cores_of(tmp_path / "none", None) == 0
