// The parts of the cache and what they know of each other.
#pragma once

#include "expert_cache.h"
#include "ggml-cpp.h"
#include "ggml_backend_abi.h"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace xc {

// ---- trouble.cpp: what went wrong, a sentence each; none waits to be read twice

void trouble(const std::string & sentence);
std::string abi_trouble(const std::string & version); // empty: ggml has the layout of ggml_backend_abi.h

// ---- layers.cpp: which experts lie in which slots

enum part { GATE, UP, DOWN, N_PARTS };

// A device graph of one layer for a number of rows, kept with its addresses: CUDA replays what it
// has captured only for the same nodes (ggml_cuda_graph_get_key takes the address of the first).
struct kept_graph {
    struct place { // where the scheduler has put what goes in and out
        int rows;
        const void * x, * ids, * out;
        size_t ids_stride;
        ggml_backend_buffer_t x_buffer, ids_buffer, out_buffer; // it may have made new ones
        bool operator==(const place & o) const {
            return rows == o.rows && x == o.x && ids == o.ids && out == o.out && ids_stride == o.ids_stride &&
                   x_buffer == o.x_buffer && ids_buffer == o.ids_buffer && out_buffer == o.out_buffer;
        }
    } at;
    ggml_context_ptr ctx;
    ggml_cgraph * graph;
    ggml_tensor * slot_ids; // filled by the host; null: the device looks slots up
};

enum : int32_t { FREE = -1, BROKEN = -2 };

struct layer {
    int number = 0, n_experts = 0;
    const ggml_tensor * host[N_PARTS] = {}; // as the model loader placed them
    bool pinned = false;                    // the device can copy from there by itself

    int n_slots = 0; // one more follows, all zero, at which misses are pointed
    ggml_tensor * slots[N_PARTS] = {};
    ggml_tensor * slot_table = nullptr; // on the device: slot_of
    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    std::vector<int32_t> slot_of;   // expert -> slot, n_slots if not resident: what decodes see
    std::vector<int32_t> expert_in; // slot -> expert, also while it is uploaded; FREE, BROKEN
    int n_resident = 0;
    bool table_stale = true;
    std::vector<kept_graph> graphs;

    std::vector<int64_t> hits, misses; // pairs of row and expert

    bool complete() const { return host[GATE] && host[UP] && host[DOWN]; }
    bool resident(int32_t expert) const { return n_slots && slot_of[expert] < n_slots; }
    size_t expert_bytes() const {
        return complete() ? host[GATE]->nb[2] + host[UP]->nb[2] + host[DOWN]->nb[2] : 0;
    }
};

struct upload {
    layer * to;
    int32_t slot, expert;
    bool done = false;
};

// One memory for all layers and contexts: blocks are computed one after another.
struct scratch {
    ggml_backend_buffer_ptr buffer;
    char * at(size_t offset) const { return (char *) ggml_backend_buffer_get_base(buffer.get()) + offset; }
    size_t size() const { return buffer ? ggml_backend_buffer_get_size(buffer.get()) : 0; }
    bool grow(ggml_backend_buffer_type_t, size_t); // false: no memory; keeps what it had
};

// Never destroyed: at exit the device's driver may be gone before us.
struct cache {
    std::mutex lock; // of all that follows; held while a block is computed
    xc_options options = {};
    std::string device_name;
    ggml_backend_dev_t device = nullptr;
    // Streams of our own beside the scheduler's: one computes hits, one uploads.
    ggml_backend_t compute = nullptr, uploading = nullptr, cpu = nullptr;
    ggml_backend_event_t fetched = nullptr; // null: the device has no events
    ggml_backend_t unfinished = nullptr;    // a scheduler's stream on which blocks may still be computed
    scratch on_device, on_host;             // on_host is pinned where the device has a type for that
    std::map<int, std::unique_ptr<layer>> layers;
    std::vector<upload *> pending; // begun since the last commit
    xc_totals totals = {};
};
cache & the();
bool grow_host(size_t); // `on_host`; false: no memory
void finish_blocks();   // until no stream computes any

void add_weight(const ggml_tensor *, bool pinned); // ffn_(gate|up|down)_exps; others are let be
void drop_weights(ggml_backend_buffer_t);
layer * layer_of(const ggml_tensor * gate, const ggml_tensor * up, const ggml_tensor * down); // or null
void allocate(int32_t * slots);
bool swap(layer &, int32_t incoming, int32_t outgoing);
bool commit();

// ---- uploads.cpp: a thread that copies experts into slots

void begin_upload(upload *);
void finish_uploads();

// ---- graphs.cpp

// In batches of more rows devices sort rows by expert, and then none may occur twice in a row
// (mm_ids_helper in CUDA reads memory that nobody wrote). Up to here they multiply pair by pair, so
// that all misses of a row may be pointed at the same slot, and the device can look slots up itself.
constexpr int FEW_ROWS = 4;

// The four nodes of a layer's block in the scheduler's graph; x and ids feed gate and up alike.
struct block {
    ggml_tensor * gate, * up, * glu, * down;
    ggml_tensor * x() const { return up->src[1]; }
    ggml_tensor * ids() const { return up->src[2]; }
};

size_t host_bytes(const layer &, int n_used, int rows);
kept_graph * device_graph(layer &, const block &);                  // null: not on this device
bool try_device_graph(layer &, int n_used, int rows, size_t & bytes); // false: not on this device

// One product after the other on the CPU, for `pairs` pairs [used, rows] of experts. x, ids: on
// the host. Sets `out`, f32 [n_embd, pairs].
ggml_status compute_on_cpu(const block &, int used, int rows, const char * x, const int32_t * ids, char * memory,
                           const char *& out);

// ---- block.cpp. on: the stream; the scheduler's own, or ours, on which they wait for the end

ggml_status compute_block(ggml_backend_t on, const block &);
ggml_status compute_product(ggml_backend_t on, ggml_tensor *); // one MUL_MAT_ID of no block

// ---- weights.cpp, backend.cpp

ggml_backend_buffer_type_t weight_type();
inline bool is_weight(const ggml_tensor * t) { return t && t->buffer && t->buffer->buft == weight_type(); }
ggml_backend_buffer_t wrap_weights(void * memory, size_t size); // a mapped file
ggml_backend_dev_t weight_device();
void register_backend();
void use_device(ggml_backend_dev_t);   // whose kind of buffers nodes are allocated in
void note_streams(ggml_backend_dev_t); // from now on, those that llama.cpp makes of the device; to share them

inline int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

inline size_t aligned(size_t n) { return (n + 255) / 256 * 256; } // enough for every known device

} // namespace xc
