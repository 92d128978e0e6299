#include "cache.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace xc {

cache & the() {
    static cache & the_cache = *new cache;
    return the_cache;
}

bool scratch::grow(ggml_backend_buffer_type_t type, size_t size) {
    if (size <= this->size()) {
        return true;
    }
    ggml_backend_buffer_ptr larger(ggml_backend_buft_alloc_buffer(type, size));
    if (larger) {
        buffer = std::move(larger);
    }
    return size <= this->size();
}

void finish_blocks() {
    cache & c = the();
    if (c.unfinished) {
        ggml_backend_synchronize(c.unfinished);
        c.unfinished = nullptr;
    }
}

bool grow_host(size_t size) {
    if (size > the().on_host.size()) {
        finish_blocks();
    }
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(the().device);
    return the().on_host.grow(type ? type : ggml_backend_cpu_buffer_type(), size);
}

void add_weight(const ggml_tensor * tensor, bool pinned) {
    cache & c = the();
    int number = 0, length = 0;
    char kind[8] = {};
    if (sscanf(tensor->name, "blk.%d.ffn_%4[a-z]_exps.weight%n", &number, kind, &length) != 2 || tensor->name[length]) {
        return;
    }
    const int i = !strcmp(kind, "gate") ? GATE : !strcmp(kind, "up") ? UP : !strcmp(kind, "down") ? DOWN : N_PARTS;
    std::lock_guard<std::mutex> held(c.lock);
    if (i == N_PARTS || number < 0 || number >= c.options.n_layers || tensor->ne[2] != c.options.n_experts) {
        return;
    }
    auto & l = c.layers[number];
    if (!l) {
        l.reset(new layer);
        l->number = number;
        l->n_experts = (int) tensor->ne[2];
        l->pinned = pinned;
        l->slot_of.assign(l->n_experts, 0);
        l->hits.assign(l->n_experts, 0);
        l->misses.assign(l->n_experts, 0);
    }
    if (l->host[i]) {
        trouble("the expert cache serves one model at a time: another is computed without it");
        return;
    }
    l->host[i] = tensor;
    l->pinned = l->pinned && pinned;
}

void drop_weights(ggml_backend_buffer_t buffer) {
    cache & c = the();
    std::lock_guard<std::mutex> held(c.lock);
    const auto lies_there = [&](const ggml_tensor * t) { return t && t->buffer == buffer; };
    for (auto it = c.layers.begin(); it != c.layers.end();) {
        layer & l = *it->second;
        if (!std::any_of(l.host, l.host + N_PARTS, lies_there)) {
            ++it;
            continue;
        }
        finish_uploads();
        auto & pending = c.pending;
        const auto first_gone = std::partition(pending.begin(), pending.end(), [&](upload * u) { return u->to != &l; });
        std::for_each(first_gone, pending.end(), [](upload * u) { delete u; });
        pending.erase(first_gone, pending.end());
        it = c.layers.erase(it);
    }
}

layer * layer_of(const ggml_tensor * gate, const ggml_tensor * up, const ggml_tensor * down) {
    for (auto & [number, l] : the().layers) {
        if (l->host[GATE] == gate && l->host[UP] == up && l->host[DOWN] == down) {
            return l.get();
        }
    }
    return nullptr;
}

static void release(layer & l) {
    l.graphs.clear();
    l.buffer.reset();
    l.ctx.reset();
    l.n_slots = l.n_resident = 0;
    std::fill(l.slots, l.slots + N_PARTS, nullptr);
    l.slot_table = nullptr;
}

static bool give_slots(layer & l, int n_slots) {
    cache & c = the();
    release(l);
    n_slots = std::min(n_slots, l.n_experts);
    if (n_slots <= 0 || !l.complete()) {
        return true;
    }
    l.ctx.reset(ggml_init({ggml_tensor_overhead() * (N_PARTS + 1), nullptr, true}));
    for (int i = 0; i < N_PARTS; i++) {
        l.slots[i] = ggml_new_tensor_3d(l.ctx.get(), l.host[i]->type, l.host[i]->ne[0], l.host[i]->ne[1], n_slots + 1);
    }
    l.slot_table = ggml_new_tensor_2d(l.ctx.get(), GGML_TYPE_I32, 1, l.n_experts);
    l.buffer.reset(ggml_backend_alloc_ctx_tensors(l.ctx.get(), c.compute));
    if (!l.buffer) {
        release(l);
        return false;
    }
    ggml_backend_buffer_set_usage(l.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    // All of it: kernels may read past an expert's end, and must not meet infinities there.
    ggml_backend_buffer_clear(l.buffer.get(), 0);
    l.n_slots = n_slots;
    l.slot_of.assign(l.n_experts, n_slots);
    l.expert_in.assign(n_slots, FREE);
    l.table_stale = true;
    return true;
}

// How many bytes a layer's graph takes beside weights and activations, at most; false: some layer
// cannot be computed on this device.
static bool graph_bytes(size_t & bytes) {
    cache & c = the();
    for (auto & [number, l] : c.layers) {
        size_t one = 0;
        if (l->n_slots && !try_device_graph(*l, c.options.n_used, c.options.max_rows, one)) {
            return false;
        }
        bytes = std::max(bytes, one);
    }
    return true;
}

enum fit { FITS, TOO_MUCH, IMPOSSIBLE };

// Gives all layers `share` of the slots, and graphs the memory that they work in.
static fit give(const int32_t * slots, double share) {
    cache & c = the();
    for (auto & [number, l] : c.layers) {
        if (!give_slots(*l, (int) (slots[number] * share))) {
            return TOO_MUCH;
        }
    }
    size_t working = 0;
    if (!graph_bytes(working)) {
        return IMPOSSIBLE;
    }
    return c.on_device.grow(ggml_backend_dev_buffer_type(c.device), working) ? FITS : TOO_MUCH;
}

void allocate(int32_t * slots) {
    cache & c = the();
    finish_uploads();
    std::for_each(c.pending.begin(), c.pending.end(), [](upload * u) { delete u; });
    c.pending.clear();
    finish_blocks();
    ggml_backend_synchronize(c.compute);
    for (auto & [number, l] : c.layers) {
        release(*l);
    }
    size_t host = 0;
    for (auto & [number, l] : c.layers) {
        host = std::max(host, l->complete() ? host_bytes(*l, c.options.n_used, c.options.max_rows) : 0);
    }
    std::string why = grow_host(host) ? "" : "there is no host memory for it";
    double share = 1.0;
    for (fit found = TOO_MUCH; found != FITS && why.empty();) {
        found = give(slots, share);
        // Fewer slots for all layers alike: one layer without any would miss with every token.
        if (found == IMPOSSIBLE) {
            why = c.device_name + " cannot compute this model's experts";
        } else if (found == TOO_MUCH && (share *= 0.8) <= 0.05) {
            why = c.device_name + " has no memory left for it";
        }
    }
    if (!why.empty()) {
        trouble("the expert cache is off: " + why);
    } else if (share < 1.0) {
        trouble("the expert cache is smaller than planned: " + c.device_name + " is short of memory");
    }
    for (auto & [number, l] : c.layers) {
        if (!why.empty()) {
            release(*l);
        }
        slots[number] = l->n_slots;
    }
}

bool swap(layer & l, int32_t incoming, int32_t outgoing) {
    finish_blocks();
    const auto slot_with = [&](int32_t what) {
        return (int32_t) (std::find(l.expert_in.begin(), l.expert_in.end(), what) - l.expert_in.begin());
    };
    if (!l.n_slots || incoming < 0 || incoming >= l.n_experts || slot_with(incoming) < l.n_slots) {
        return false;
    }
    int32_t slot;
    if (outgoing < 0) {
        slot = slot_with(FREE);
    } else if (outgoing < l.n_experts && l.resident(outgoing)) {
        slot = l.slot_of[outgoing];
    } else {
        return false;
    }
    if (slot >= l.n_slots) {
        return false;
    }
    if (outgoing >= 0) {
        l.slot_of[outgoing] = l.n_slots;
        l.n_resident--;
        l.table_stale = true;
    }
    l.expert_in[slot] = incoming;
    the().pending.push_back(new upload{&l, slot, incoming});
    begin_upload(the().pending.back());
    return true;
}

bool commit() {
    cache & c = the();
    finish_uploads();
    finish_blocks();
    int failed = 0;
    for (upload * u : c.pending) {
        layer & l = *u->to;
        if (u->done) {
            l.slot_of[u->expert] = u->slot;
            l.n_resident++;
            l.table_stale = true;
            c.totals.uploads++;
            c.totals.upload_bytes += (int64_t) l.expert_bytes();
        } else {
            l.expert_in[u->slot] = BROKEN;
            failed++;
        }
        delete u;
    }
    c.pending.clear();
    if (failed) {
        trouble("experts did not arrive on " + c.device_name + ": the expert cache goes on without their places");
    }
    return !failed;
}

} // namespace xc
