// One layer's experts: hits on the device out of slots, misses on the CPU meanwhile.
//
// The scheduler has waited for its own stream before it calls us: our splits have no inputs to be
// copied (backend.cpp), and then ggml_backend_sched_compute_splits synchronizes with the backend
// before. Behind us it does not always wait, for example not if the next split brings an input of
// its own; so what is computed on a stream of ours is complete on return. On the scheduler's own
// stream what comes next is behind it anyway, and the device need not idle until the host has
// noticed the end and sent the next split.
#include "cache.h"

#include <algorithm>
#include <cstring>

namespace xc {

namespace {

size_t span(const ggml_tensor * t) { return t->nb[1] * (t->ne[1] - 1) + t->ne[0] * sizeof(int32_t); }

void finish(ggml_backend_t on) {
    cache & c = the();
    if (on != c.compute) {
        c.unfinished = on;
    } else if (c.options.end_sync) {
        ggml_backend_synchronize(on);
    }
}

// Rows of the output that lie together go in one copy.
void put(ggml_backend_t on, ggml_tensor * out, const char * from, const std::vector<int> & pairs) {
    const size_t row = out->nb[1];
    for (size_t i = 0, end; i < pairs.size(); i = end) {
        for (end = i + 1; end < pairs.size() && pairs[end] == pairs[end - 1] + 1; end++) {
        }
        ggml_backend_tensor_set_async(on, out, from + i * row, pairs[i] * row, (end - i) * row);
    }
}

// Points the misses of every row at slots that it does not use otherwise, each at another one: what
// comes of them is overwritten. There are slots enough.
void spread_misses(int32_t * slots, int n_used, int rows, int32_t missing) {
    for (int32_t * row = slots; row < slots + n_used * rows; row += n_used) {
        int32_t next = missing; // the empty one first, then the others
        for (int i = 0; i < n_used; i++) {
            if (row[i] != missing) {
                continue;
            }
            while (next != missing && std::find(row, row + n_used, next) != row + n_used) {
                next++;
            }
            row[i] = next;
            next = next == missing ? 0 : next + 1;
        }
    }
}

} // namespace

ggml_status compute_block(ggml_backend_t on, const block & b) {
    cache & c = the();
    const int64_t began = now_ns();
    const ggml_tensor * x = b.x(), * ids = b.ids();
    const int n_used = (int) ids->ne[0], rows = (int) ids->ne[1], pairs = n_used * rows;
    const size_t x_row = x->ne[0] * sizeof(float);
    layer * l = layer_of(b.gate->src[0], b.up->src[0], b.down->src[0]);

    // Without a layer the block belongs to a model that has no cache; all of it misses.
    layer shapes;
    if (!l) {
        shapes.host[UP] = b.up->src[0];
        shapes.n_experts = (int) b.up->src[0]->ne[2];
    }
    if (c.unfinished != on) {
        finish_blocks(); // they use the same memory
    }
    if (!grow_host(host_bytes(l ? *l : shapes, n_used, rows))) {
        trouble("the expert cache has no host memory to compute in");
        return GGML_STATUS_ALLOC_FAILED;
    }
    char * memory = c.on_host.at(0);
    char * host_x = memory;
    memory += aligned(x_row * rows);
    char * host_ids = memory;
    memory += aligned(span(ids));
    int32_t * slots = (int32_t *) memory;
    memory += aligned(pairs * sizeof(int32_t));
    int32_t * missed_ids = (int32_t *) memory;
    memory += aligned(pairs * sizeof(int32_t));

    // The device begins with what is known to it, before the host knows which experts are meant.
    const bool enough = l && l->n_resident && (rows <= FEW_ROWS || l->n_slots + 1 >= n_used);
    kept_graph * graph = enough ? device_graph(*l, b) : nullptr;
    ggml_backend_tensor_get_async(on, ids, host_ids, 0, span(ids));
    ggml_backend_tensor_get_async(on, x, host_x, 0, x_row * rows);
    if (graph && l->table_stale) {
        ggml_backend_tensor_set_async(on, l->slot_table, l->slot_of.data(), 0, l->n_experts * sizeof(int32_t));
        l->table_stale = false;
    }
    const bool ahead = graph && !graph->slot_ids && c.fetched;
    if (ahead) {
        ggml_backend_event_record(c.fetched, on);
        ggml_backend_graph_compute_async(on, graph->graph);
        ggml_backend_event_synchronize(c.fetched);
    } else {
        ggml_backend_synchronize(on);
    }
    const int64_t fetched = now_ns();

    static std::vector<int> missed; // pairs; under the lock
    missed.clear();
    for (int pair = 0; pair < pairs; pair++) {
        const int32_t expert = ((const int32_t *) (host_ids + pair / n_used * ids->nb[1]))[pair % n_used];
        if (expert < 0 || expert >= b.up->src[0]->ne[2]) {
            ggml_backend_synchronize(on);
            return GGML_STATUS_FAILED;
        }
        const bool hit = graph && l->resident(expert);
        slots[pair] = hit ? l->slot_of[expert] : l ? l->n_slots : 0;
        if (l) {
            (hit ? l->hits : l->misses)[expert]++;
        }
        if (!hit) {
            missed_ids[missed.size()] = expert;
            missed.push_back(pair);
        }
    }
    if (graph && !ahead && (int) missed.size() < pairs) {
        if (graph->slot_ids) {
            spread_misses(slots, n_used, rows, l->n_slots);
            ggml_backend_tensor_set_async(on, graph->slot_ids, slots, 0, pairs * sizeof(int32_t));
        }
        ggml_backend_graph_compute_async(on, graph->graph);
    }

    if (!missed.empty()) {
        const bool all = (int) missed.size() == pairs;
        // In the batch's own shape if it can be: rows of one token then share their quantised input.
        const int used = all ? n_used : rows == 1 ? (int) missed.size() : 1;
        const int n = all ? rows : rows == 1 ? 1 : (int) missed.size();
        const char * input = host_x;
        if (!all && rows > 1) {
            for (size_t i = 0; i < missed.size(); i++) {
                memcpy(memory + i * x_row, host_x + missed[i] / n_used * x_row, x_row);
            }
            input = memory;
            memory += aligned(missed.size() * x_row);
        }
        const char * out = nullptr;
        const ggml_status status = compute_on_cpu(b, used, n, input, missed_ids, memory, out);
        if (status != GGML_STATUS_SUCCESS) {
            ggml_backend_synchronize(on);
            return status;
        }
        put(on, b.down, out, missed); // behind the device's graph, which wrote zeros there
    }
    const int64_t computed = now_ns();
    finish(on);
    const int64_t ended = now_ns();
    c.totals.blocks++;
    c.totals.fetch_ns += fetched - began;
    c.totals.cpu_ns += computed - fetched;
    c.totals.wait_ns += ended - computed;
    c.totals.block_ns += ended - began;
    return GGML_STATUS_SUCCESS;
}

ggml_status compute_product(ggml_backend_t on, ggml_tensor * t) {
    cache & c = the();
    ggml_tensor * x = t->src[1], * ids = t->src[2];
    finish_blocks(); // they use the same memory
    const size_t x_bytes = ggml_nbytes(x), ids_bytes = ggml_nbytes(ids), out_bytes = ggml_nbytes(t);
    if (!grow_host(aligned(x_bytes) + aligned(ids_bytes) + aligned(out_bytes))) {
        trouble("the expert cache has no host memory to compute in");
        return GGML_STATUS_ALLOC_FAILED;
    }
    char * memory = c.on_host.at(0);
    ggml_context_ptr ctx(
        ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead_custom(8, false) + 1024, nullptr, true}));
    ggml_tensor * own[] = {ggml_dup_tensor(ctx.get(), x), ggml_dup_tensor(ctx.get(), ids)};
    memcpy(own[0]->nb, x->nb, sizeof x->nb);
    memcpy(own[1]->nb, ids->nb, sizeof ids->nb);
    ggml_tensor * out = ggml_mul_mat_id(ctx.get(), t->src[0], own[0], own[1]);
    memcpy(out->op_params, t->op_params, sizeof t->op_params);
    ggml_backend_tensor_alloc(c.on_host.buffer.get(), own[0], memory);
    ggml_backend_tensor_alloc(c.on_host.buffer.get(), own[1], memory + aligned(x_bytes));
    ggml_backend_tensor_alloc(c.on_host.buffer.get(), out, memory + aligned(x_bytes) + aligned(ids_bytes));
    ggml_backend_tensor_get_async(on, x, own[0]->data, 0, x_bytes);
    ggml_backend_tensor_get_async(on, ids, own[1]->data, 0, ids_bytes);
    ggml_backend_synchronize(on);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 8, false);
    ggml_build_forward_expand(graph, out);
    const ggml_status status = ggml_backend_graph_compute(c.cpu, graph);
    if (status == GGML_STATUS_SUCCESS) {
        ggml_backend_tensor_set_async(on, t, out->data, 0, out_bytes);
    }
    ggml_backend_synchronize(on); // `memory` is used again
    c.totals.unmatched++;
    return status;
}

} // namespace xc
