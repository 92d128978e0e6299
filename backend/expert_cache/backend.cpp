// What ggml sees: a device of type ACCEL that multiplies with experts, and nothing else.
//
// llama_context makes a backend of each ACCEL device between the GPUs' and the CPU's, and the
// scheduler gives a node to the first backend that supports it where its weights lie
// (ggml_backend_sched_backend_id_from_cur). So MUL_MAT_ID over our weights comes to us, the GLU
// between them follows (pass 2 of ggml_backend_sched_split_graph), and a layer's four nodes arrive
// as one split.
#include "cache.h"

#include <cstring>

namespace xc {

namespace {

ggml_backend_device device, weights_device; // the second is not registered, see below
ggml_backend_reg registry;
std::map<ggml_backend_dev_t, ggml_backend_t (*)(ggml_backend_dev_t, const char *)> own_init;
ggml_backend_t latest = nullptr; // that was made of the device, if no backend of ours was since
// The device's kind of buffers under an address of its own. As the very same type pass 3 of
// ggml_backend_sched_split_graph would move our nodes to the device ("upgrade"); as a type that
// the device does not know, everything would be copied at each split.
ggml_backend_buffer_type twin;

ggml_backend_buffer_t alloc_in_original(ggml_backend_buffer_type_t type, size_t size) {
    // The buffers are the device's own: CUDA demands it of those it copies from and to.
    return ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(type->device), size);
}

bool like_twin(ggml_backend_buffer_type_t type) {
    return twin.device && type->device == twin.device && type->iface.get_name == twin.iface.get_name;
}

// ---- the backend: walks the scheduler's nodes and finds blocks in them

bool is_view(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

// The block that begins with node i, in the order of build_moe_ffn: two products of the same
// input, GLU, a product of that. False: something else, or cut by an eval callback.
bool find_block(ggml_cgraph * graph, int i, block & b) {
    ggml_tensor * first = ggml_graph_node(graph, i), * other = nullptr;
    b = {};
    const int n = ggml_graph_n_nodes(graph);
    for (int j = i + 1; j < n && !b.down; j++) {
        ggml_tensor * t = ggml_graph_node(graph, j);
        if (t->op == GGML_OP_GLU && t->src[0] && t->src[1] && (t->src[0] == first || t->src[1] == first)) {
            b.glu = t;
            b.gate = t->src[0];
            b.up = t->src[1];
            other = b.gate == first ? b.up : b.gate;
        } else if (b.glu && t->op == GGML_OP_MUL_MAT_ID && t->src[1] == b.glu) {
            b.down = t;
        }
    }
    if (!b.down || other->op != GGML_OP_MUL_MAT_ID || !is_weight(other->src[0]) || !is_weight(b.down->src[0])) {
        return false;
    }
    bool here = false;
    for (int j = i + 1; j < n; j++) {
        here = here || ggml_graph_node(graph, j) == other;
    }
    const ggml_tensor * x = first->src[1], * ids = first->src[2];
    return here && other->src[1] == x && other->src[2] == ids && b.down->src[2] == ids && x->ne[1] == 1 &&
           x->ne[3] == 1 && ggml_is_contiguous(x) && ids->nb[0] == sizeof(int32_t) && ggml_is_contiguous(b.down) &&
           ggml_are_same_shape(b.gate->src[0], b.up->src[0]);
}

ggml_status compute_on_device(ggml_backend_t on, ggml_tensor * t) {
    ggml_context_ptr ctx(ggml_init({ggml_graph_overhead_custom(4, false) + 1024, nullptr, true}));
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 4, false);
    ggml_graph_add_node(graph, t);
    const ggml_status status = ggml_backend_graph_compute_async(on, graph);
    ggml_backend_synchronize(on);
    return status;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    std::lock_guard<std::mutex> held(the().lock);
    ggml_backend_t scheduler = (ggml_backend_t) backend->context;
    ggml_backend_t on = the().options.shared && scheduler ? scheduler : the().compute;
    block done = {};
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * t = ggml_graph_node(graph, i);
        if (is_view(t) || !(t->flags & GGML_TENSOR_FLAG_COMPUTE) || ggml_is_empty(t) || t == done.gate ||
            t == done.up || t == done.glu || t == done.down) {
            continue;
        }
        block b;
        ggml_status status;
        if (t->op == GGML_OP_MUL_MAT_ID && find_block(graph, i, b)) {
            status = compute_block(on, b);
            done = b;
        } else if (t->op == GGML_OP_MUL_MAT_ID) {
            status = compute_product(on, t);
        } else {
            status = compute_on_device(on, t);
        }
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

const char * backend_name(ggml_backend_t) { return "ExpertCache"; }
void backend_free(ggml_backend_t backend) {
    std::lock_guard<std::mutex> held(the().lock);
    if (the().unfinished == backend->context) {
        the().unfinished = nullptr; // the context frees its backends in order, ours behind the device's
    }
    for (auto & [number, l] : the().layers) {
        l->graphs.clear(); // they point into the buffers of the context that goes
    }
    delete backend;
}
// Nothing is left to do when graph_compute returns, or it is left to the scheduler's own stream.
void backend_synchronize(ggml_backend_t) {}

ggml_backend_t init_backend(ggml_backend_dev_t, const char *) {
    static ggml_guid guid = {'s', 'p', 'e', 'c', 'f', 'i', 't', '-', 'e', 'x', 'p', 'e', 'r', 't', 's', 1};
    ggml_backend_i calls = {};
    calls.get_name = backend_name;
    calls.free = backend_free;
    calls.synchronize = backend_synchronize;
    calls.graph_compute = graph_compute;
    std::lock_guard<std::mutex> held(the().lock);
    ggml_backend_t scheduler = latest;
    latest = nullptr;
    return new ggml_backend{&guid, calls, &device, scheduler};
}

// Stands before the device's own: llama_context makes a backend of each of its devices, and ours
// right behind the GPU's, so the latest one is of the same scheduler. (A context that makes none
// has none of our blocks either.)
ggml_backend_t init_noted(ggml_backend_dev_t dev, const char * params) {
    ggml_backend_t made = own_init.at(dev)(dev, params);
    if (dev == the().device) {
        latest = made;
    }
    return made;
}

// ---- the device

const char * device_name(ggml_backend_dev_t) { return "ExpertCache"; }
const char * device_description(ggml_backend_dev_t) { return "experts in use, on the GPU"; }
void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) { *free = *total = 0; }
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_name(dev);
    props->description = device_description(dev);
    props->type = device_type(dev);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support = true;
}

// Two devices, since each has one default type of buffers: the scheduler asks the backend's device
// where nodes go, and llama_model::load_tensors maps weights instead of reading them only into the
// default type of the weights' device.
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t dev) {
    return dev == &weights_device ? weight_type() : twin.device ? &twin : ggml_backend_cpu_buffer_type();
}

ggml_backend_buffer_t from_host(ggml_backend_dev_t, void * memory, size_t size, size_t) {
    return wrap_weights(memory, size);
}

bool is_our_product(const ggml_tensor * t) {
    while (t && (t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE)) {
        t = t->src[0];
    }
    return t && t->op == GGML_OP_MUL_MAT_ID && is_weight(t->src[0]);
}

// More rows than that go where they would without us: the weights are host memory to the CPU, and
// from 32 rows on the GPU may have them brought (op offload).
bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    const int64_t max_rows = the().options.max_rows;
    switch (op->op) {
        case GGML_OP_NONE:
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
            return true;
        case GGML_OP_MUL_MAT_ID:
            return twin.device && is_weight(op->src[0]) && op->src[1]->type == GGML_TYPE_F32 && op->ne[2] <= max_rows;
        case GGML_OP_GLU:
            // The rest, weighting and adding up, stays with the device, which fuses it.
            return op->ne[2] <= max_rows && is_our_product(op->src[0]);
        default:
            return false;
    }
}

bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == weight_type() || like_twin(type);
}

// ---- the registry

const char * registry_name(ggml_backend_reg_t) { return "ExpertCache"; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t) { return &device; }

void set_threads(ggml_backend_t, int n) {
    std::lock_guard<std::mutex> held(the().lock);
    ggml_backend_t cpu = the().cpu;
    auto set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads");
    if (set) {
        set(cpu, n);
    }
}

void * get_proc_address(ggml_backend_reg_t, const char * name) {
    return strcmp(name, "ggml_backend_set_n_threads") == 0 ? (void *) set_threads : nullptr;
}

} // namespace

ggml_backend_dev_t weight_device() { return &weights_device; }

void use_device(ggml_backend_dev_t on) {
    twin = *ggml_backend_dev_buffer_type(on);
    twin.iface.alloc_buffer = alloc_in_original;
    latest = nullptr;
}

void note_streams(ggml_backend_dev_t of) {
    if (own_init.emplace(of, of->iface.init_backend).second) {
        of->iface.init_backend = init_noted;
    }
}

void register_backend() {
    ggml_backend_device_i calls = {};
    calls.get_name = device_name;
    calls.get_description = device_description;
    calls.get_memory = device_memory;
    calls.get_type = device_type;
    calls.get_props = device_props;
    calls.init_backend = init_backend;
    calls.get_buffer_type = buffer_type;
    calls.buffer_from_host_ptr = from_host;
    calls.supports_op = supports_op;
    calls.supports_buft = supports_buft;
    device = {calls, &registry, nullptr};
    weights_device = {calls, &registry, nullptr};
    registry = {XC_BACKEND_API_VERSION, {registry_name, device_count, get_device, get_proc_address}, nullptr};
    ggml_backend_register(&registry);
}

} // namespace xc
