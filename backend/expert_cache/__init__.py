"""The experts in use in GPU memory, inside an unmodified llama.cpp: hits are computed on the GPU,
misses on the CPU at the same time.

A library of ours (C++ beside this file) registers itself with ggml as one more backend, to which
llama.cpp leaves the multiplications with experts. Any GPU backend of ggml will do: it is used
through ggml's own calls. How it goes, for one model at a time:

    cache = ExpertCache("CUDA0", n_layers, n_experts, n_used)   # before the model is loaded
    ... load with all layers on the GPU, and with cache.override() as tensor_buft_overrides ...
    ... make the context, and decode max_rows rows once, so that its buffers have their size ...
    cache.allocate(budget)                # bytes of GPU memory; what is left after the context
    for expert in favourites: cache.swap(layer, expert)
    cache.commit()                        # they count from here on

    each cycle:
        cache.commit()                    # what was begun a cycle ago; waits if it must
        cache.swap(layer, incoming, outgoing) ...    # begins uploads, which run beside the decode
        llama_decode(...)
        cache.counters(), cache.residency

`swap` and `commit` belong between decodes, on any thread. Residency changes nowhere else, and never
by how fast a machine is, so the same swaps give the same text. An expert that goes is gone at once,
and the one that comes counts from the commit after: swap a cycle ahead of need.

Batches of more than `max_rows` rows (prompts) take llama.cpp's ordinary path. With a load mode that
maps the file, weights stay mapped; read without mapping they lie in pinned memory, from which the
GPU copies faster. Where anything is missing (a compiler, memory, a ggml of another version), the
constructor raises SpecfitError, or there are fewer slots or none and `trouble()` has a sentence;
the output is right in any case. What a GPU's driver refuses while it computes ends the process: so
ggml has it.

Closing the model empties the cache, and only then can another be made for the next model. Nothing
of it slows a model that is loaded without: the backend that stays registered is offered no work.
"""

from .cache import MAX_ROWS, Counters, ExpertCache, slots_within

__all__ = ["MAX_ROWS", "Counters", "ExpertCache", "slots_within"]
