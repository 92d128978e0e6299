// What Python calls. "layer" is llama.cpp's number of the block, 0 .. n_layers-1; arrays over
// experts are [n_layers][n_experts], row by row. Nothing here throws or aborts.
#pragma once

#include <cstddef>
#include <cstdint>

#define XC_API extern "C" __attribute__((visibility("default")))

// ggml_version: what the headers of this build belong to; null: what ggml_backend_abi.h was written
// for. max_rows: batches of more rows take llama.cpp's ordinary path. n_used: experts a token uses.
// events: 0 does without the device's events. end_sync: 0 leaves out the wait that keeps results
// from being read early, which only the test of that wait wants. shared: 1 computes hits on the
// scheduler's own stream, in whose order no wait is needed; only if all that reads the results of
// experts is on the device.
struct xc_options {
    const char * device, * ggml_version;
    int32_t n_layers, n_experts, n_used, max_rows, events, end_sync, shared;
};

struct xc_totals {
    int64_t blocks;        // layers computed through the cache, hits or not
    int64_t unmatched;     // expert multiplications of no known pattern, computed on the CPU
    int64_t uploads;       // experts copied to the device
    int64_t upload_bytes;
    int64_t graphs_built;  // device graphs; none in a steady state
    int64_t fetch_ns;      // of the blocks: until router and activations were on the host
    int64_t cpu_ns;        //   computing misses
    int64_t wait_ns;       //   waiting for the device at the end, if that is done
    int64_t block_ns;      //   altogether
};

// Registers the backend with ggml, once; called again it only changes the options, for the next
// model, and refuses while one is loaded. False: the cache cannot be used, `xc_trouble` says why.
// Before the model is loaded.
XC_API bool xc_open(const xc_options * options);

// What `tensor_buft_overrides` names for ffn_(up|gate|down)_exps; stays valid.
XC_API void * xc_buffer_type(void);

// Of each layer, the bytes of one expert; 0 where there is nothing to cache. After the model is loaded.
XC_API void xc_expert_bytes(int64_t * bytes);

// Gives layer i room for slots[i] experts, all empty, and writes what it got: as many, evenly
// fewer where device memory does not suffice, or none. Frees what there was before.
XC_API void xc_allocate(int32_t * slots);

// Begins to upload `incoming` into the slot of `outgoing`, or a free one (-1). `outgoing` is gone
// at once, `incoming` counts from the next `xc_commit`. False: nothing was done (no such slot, or
// already there). Between decodes only.
XC_API bool xc_swap(int32_t layer, int32_t incoming, int32_t outgoing);

// Waits for the uploads begun so far and makes them count. False: some failed, and their slots
// are out of use. Between decodes only.
XC_API bool xc_commit(void);

XC_API void xc_residency(uint8_t * resident);
// Since the model was loaded, or the last `xc_reset_counters`.
XC_API void xc_counters(int64_t * hits, int64_t * misses, xc_totals * totals);
XC_API void xc_reset_counters(void);
// The uses of experts since then, and of each layer three sums: hits, the experts that were missing,
// and the uses of those; resets them. Between any two decodes, so it spares Python the arithmetic.
XC_API void xc_take_uses(double * uses, int64_t * sums);

// The oldest sentence about what went wrong that was not yet read; false: none.
XC_API bool xc_trouble(char * text, size_t size);
