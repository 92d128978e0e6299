// The type of buffer that expert weights lie in: host memory, in ggml's plain layout. The CPU
// computes on it as on its own, and the device copies experts out of it.
#include "cache.h"

#include <cstdlib>
#include <cstring>

namespace xc {

namespace {

struct weights {
    void * memory;
    bool owned;
    ggml_backend_buffer_ptr pinned;
};

weights & of(ggml_backend_buffer_t buffer) { return *(weights *) buffer->context; }

void free_buffer(ggml_backend_buffer_t buffer) {
    drop_weights(buffer);
    if (of(buffer).owned) {
        free(of(buffer).memory);
    }
    delete &of(buffer);
}

void * get_base(ggml_backend_buffer_t buffer) { return of(buffer).memory; }

// Called for each tensor that is placed here, mapped from a file or not (ggml_backend_tensor_alloc).
ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    if (!tensor->view_src) {
        add_weight(tensor, of(buffer).pinned != nullptr);
    }
    return GGML_STATUS_SUCCESS;
}

void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    memset((char *) tensor->data + offset, value, size);
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    memcpy((char *) tensor->data + offset, data, size);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    memcpy(data, (const char *) tensor->data + offset, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) { memset(of(buffer).memory, value, buffer->size); }

ggml_backend_buffer_t make(weights * content, size_t size) {
    ggml_backend_buffer_i calls = {};
    calls.free_buffer = free_buffer;
    calls.get_base = get_base;
    calls.init_tensor = init_tensor;
    calls.memset_tensor = memset_tensor;
    calls.set_tensor = set_tensor;
    calls.get_tensor = get_tensor;
    calls.clear = clear;
    return ggml_backend_buffer_init(weight_type(), calls, content, size);
}

const char * name(ggml_backend_buffer_type_t) { return "ExpertCache_Host"; }

// Pinned, if the device has a type of buffers for that and the system allows that much.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t, size_t size) {
    ggml_backend_buffer_type_t pinned_type = the().device ? ggml_backend_dev_host_buffer_type(the().device) : nullptr;
    if (pinned_type) {
        // What comes back may be plain memory: CUDA's type falls back on the CPU's by itself.
        ggml_backend_buffer_ptr pinned(ggml_backend_buft_alloc_buffer(pinned_type, size));
        if (pinned && pinned->buft == pinned_type) {
            void * memory = ggml_backend_buffer_get_base(pinned.get());
            return make(new weights{memory, false, std::move(pinned)}, size);
        }
    }
    void * memory = nullptr;
    if (posix_memalign(&memory, 4096, size ? size : 1)) {
        return nullptr;
    }
    return make(new weights{memory, true, nullptr}, size);
}

size_t get_alignment(ggml_backend_buffer_type_t) { return 64; }

bool is_host(ggml_backend_buffer_type_t) { return true; }

} // namespace

ggml_backend_buffer_type_t weight_type() {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type_i calls = {};
        calls.get_name = name;
        calls.alloc_buffer = alloc_buffer;
        calls.get_alignment = get_alignment;
        calls.is_host = is_host;
        return ggml_backend_buffer_type{calls, weight_device(), nullptr};
    }();
    return &type;
}

ggml_backend_buffer_t wrap_weights(void * memory, size_t size) {
    return make(new weights{memory, false, nullptr}, size);
}

} // namespace xc
