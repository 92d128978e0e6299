// The products of one block as graphs of our own: on the device over slots, on the CPU over the
// weights where they lie.
#include "cache.h"

#include <cstring>

namespace xc {

namespace {

constexpr int MAX_NODES = 12;

size_t arena_bytes() { return ggml_tensor_overhead() * (MAX_NODES + 4) + ggml_graph_overhead_custom(MAX_NODES, false) + 1024; }

struct products {
    ggml_tensor * gate, * up, * glu, * down;
};

products multiply(ggml_context * ctx, ggml_tensor * const weights[N_PARTS], ggml_tensor * x, ggml_tensor * ids,
                  const block * like) {
    products p;
    p.gate = ggml_mul_mat_id(ctx, weights[GATE], x, ids);
    p.up = ggml_mul_mat_id(ctx, weights[UP], x, ids);
    p.glu = ggml_glu_split(ctx, p.gate, p.up, like ? ggml_get_glu_op(like->glu) : GGML_GLU_OP_SWIGLU);
    p.down = ggml_mul_mat_id(ctx, weights[DOWN], p.glu, ids);
    if (like) {
        memcpy(p.gate->op_params, like->gate->op_params, sizeof p.gate->op_params);
        memcpy(p.up->op_params, like->up->op_params, sizeof p.up->op_params);
        memcpy(p.glu->op_params, like->glu->op_params, sizeof p.glu->op_params);
        memcpy(p.down->op_params, like->down->op_params, sizeof p.down->op_params);
    }
    return p;
}

ggml_backend_buffer_t buffer_of(const ggml_tensor * t) { return t->view_src ? t->view_src->buffer : t->buffer; }

// A tensor of the scheduler's as a leaf of our own graph, at the same address. As itself it would
// bring along all that it was computed from.
ggml_tensor * leaf(ggml_context * ctx, const ggml_tensor * t, int64_t n0, int64_t n1, int64_t n2) {
    ggml_tensor * copy = ggml_new_tensor_3d(ctx, t->type, n0, n1, n2);
    copy->nb[1] = n1 > 1 ? t->nb[1] : copy->nb[1];
    copy->nb[2] = n2 > 1 ? t->nb[2] : copy->nb[1] * n1;
    copy->nb[3] = copy->nb[2] * n2;
    if (t->data) {
        ggml_backend_tensor_alloc(buffer_of(t), copy, t->data);
    }
    return copy;
}

// Gives the nodes memory, one behind the other; returns how much. base null: only counts.
size_t place(ggml_cgraph * graph, ggml_backend_buffer_type_t type, ggml_backend_buffer_t buffer, char * base) {
    size_t used = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * t = ggml_graph_node(graph, i);
        if (t->view_src) {
            if (base) {
                ggml_backend_view_init(t);
            }
        } else if (!t->data) {
            if (base) {
                ggml_backend_tensor_alloc(buffer, t, base + used);
            }
            used += aligned(ggml_backend_buft_get_alloc_size(type, t));
        }
    }
    return used;
}

struct device_nodes {
    ggml_cgraph * graph;
    ggml_tensor * slot_ids;
};

// ids -> slots -> products. by_host: the host writes the slots' numbers.
device_nodes describe(ggml_context * ctx, layer & l, const block * b, ggml_tensor * x, ggml_tensor * ids, bool by_host) {
    const int64_t n_used = ids->ne[0], rows = ids->ne[1];
    ggml_tensor * slot_ids = nullptr, * picked = nullptr;
    if (by_host) {
        picked = slot_ids = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, n_used, rows);
    } else {
        ggml_tensor * flat = ggml_is_contiguous(ids) ? ids : ggml_cont(ctx, ids);
        flat = ggml_reshape_1d(ctx, flat, n_used * rows);
        picked = ggml_reshape_2d(ctx, ggml_get_rows(ctx, l.slot_table, flat), n_used, rows);
    }
    products p = multiply(ctx, l.slots, x, picked, b);
    if (b) { // straight into what the scheduler expects
        ggml_backend_tensor_alloc(buffer_of(b->down), p.down, b->down->data);
    }
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, MAX_NODES, false);
    // With counts of uses, without which CUDA would not fuse gate, up and GLU (ggml_can_fuse).
    ggml_build_forward_expand(graph, p.down);
    return {graph, slot_ids};
}

bool supported(ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * t = ggml_graph_node(graph, i);
        if (!t->view_src && !ggml_backend_dev_supports_op(the().device, t)) {
            return false;
        }
    }
    return true;
}

} // namespace

// Whether the device is to look slots up: then it need not wait for the host.
static bool may_look_up(const layer & l, int rows) {
    bool quantized = true; // others some devices sort in any case
    for (const ggml_tensor * weights : l.host) {
        quantized = quantized && ggml_is_quantized(weights->type);
    }
    return rows <= FEW_ROWS && quantized;
}

bool try_device_graph(layer & l, int n_used, int rows, size_t & bytes) {
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(the().device);
    for (bool by_host : {false, true}) {
        if (!by_host && !may_look_up(l, rows)) {
            continue;
        }
        ggml_context_ptr ctx(ggml_init({arena_bytes(), nullptr, true}));
        ggml_tensor * x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, l.host[UP]->ne[0], 1, rows);
        ggml_tensor * all = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, l.n_experts, rows);
        ggml_tensor * ids = leaf(ctx.get(), all, n_used, rows, 1);
        device_nodes d = describe(ctx.get(), l, nullptr, x, ids, by_host);
        if (supported(d.graph)) {
            bytes = place(d.graph, type, nullptr, nullptr) +
                    (d.slot_ids ? aligned(ggml_backend_buft_get_alloc_size(type, d.slot_ids)) : 0);
            return true;
        }
    }
    return false;
}

kept_graph * device_graph(layer & l, const block & b) {
    const ggml_tensor * x = b.x(), * ids = b.ids();
    const int rows = (int) ids->ne[1];
    const kept_graph::place at = {rows,         x->data,        ids->data,        b.down->data,
                                  ids->nb[1],   buffer_of(x),   buffer_of(ids),   buffer_of(b.down)};
    for (kept_graph & kept : l.graphs) {
        if (kept.at == at) {
            return &kept;
        }
    }
    // llama.cpp plans its memory by shapes: a few places for each number of rows.
    if (l.graphs.size() >= 128) {
        l.graphs.clear();
    }
    cache & c = the();
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(c.device);
    for (bool by_host : {false, true}) {
        if (!by_host && !may_look_up(l, rows)) {
            continue;
        }
        ggml_context_ptr ctx(ggml_init({arena_bytes(), nullptr, true}));
        ggml_tensor * own_x = leaf(ctx.get(), x, x->ne[0], 1, rows);
        ggml_tensor * own_ids = leaf(ctx.get(), ids, ids->ne[0], rows, 1);
        device_nodes d = describe(ctx.get(), l, &b, own_x, own_ids, by_host);
        const size_t for_ids = d.slot_ids ? aligned(ggml_backend_buft_get_alloc_size(type, d.slot_ids)) : 0;
        if (!supported(d.graph)) {
            continue;
        }
        if (place(d.graph, type, nullptr, nullptr) + for_ids > c.on_device.size()) {
            return nullptr;
        }
        if (d.slot_ids) {
            ggml_backend_tensor_alloc(c.on_device.buffer.get(), d.slot_ids, c.on_device.at(0));
        }
        place(d.graph, type, c.on_device.buffer.get(), c.on_device.at(for_ids));
        c.totals.graphs_built++;
        l.graphs.push_back({at, std::move(ctx), d.graph, d.slot_ids});
        return &l.graphs.back();
    }
    return nullptr;
}

// Activations, two sets of ids, and a graph over the pairs with an input of its own.
size_t host_bytes(const layer & l, int n_used, int rows) {
    const size_t n_embd = l.host[UP]->ne[0], n_ff = l.host[UP]->ne[1], pairs = (size_t) n_used * rows;
    return aligned(4 * n_embd * rows) + aligned(4 * (size_t) l.n_experts * rows) + 2 * aligned(4 * pairs) +
           aligned(4 * n_embd * pairs) * 2 + aligned(4 * n_ff * pairs) * 3;
}

ggml_status compute_on_cpu(const block & b, int used, int rows, const char * x, const int32_t * ids, char * memory,
                           const char *& out) {
    cache & c = the();
    static std::vector<char> arena(arena_bytes()); // under the cache's lock
    ggml_context_ptr ctx(ggml_init({arena.size(), arena.data(), true}));
    ggml_backend_buffer_t buffer = c.on_host.buffer.get();
    ggml_tensor * own_x = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, b.x()->ne[0], 1, rows);
    ggml_tensor * own_ids = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, used, rows);
    ggml_backend_tensor_alloc(buffer, own_x, (void *) x);
    ggml_backend_tensor_alloc(buffer, own_ids, (void *) ids);
    ggml_tensor * weights[N_PARTS] = {b.gate->src[0], b.up->src[0], b.down->src[0]};
    products p = multiply(ctx.get(), weights, own_x, own_ids, &b);
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), MAX_NODES, false);
    ggml_build_forward_expand(graph, p.down);
    place(graph, ggml_backend_cpu_buffer_type(), buffer, memory);
    out = (const char *) p.down->data;
    return ggml_backend_graph_compute(c.cpu, graph);
}

} // namespace xc
