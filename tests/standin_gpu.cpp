// A GPU for tests on machines without one: the CPU backend posing as a device whose memory is not
// the host's, whose instances are streams that work on their own time, and which fails on demand.
// It copies from host memory when it gets to it, as from pinned memory, and as late as told.
#include "ggml_backend_abi.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

ggml_backend_device device;
ggml_backend_reg registry;
ggml_backend_buffer_type memory_type, pinned_type;
std::atomic<long> delay_us{0}, bytes_left{1L << 40}, uploads_to_lose{0};
std::atomic<bool> with_events{true}, with_lookup{true}, with_experts{true}, with_pinned{true}, immediate{false};
// Only copies of this size and more can be lost: experts, not activations.
constexpr size_t LOSABLE = 1024;

// ---- memory

const char * memory_name(ggml_backend_buffer_type_t) { return "StandIn0"; }
const char * pinned_name(ggml_backend_buffer_type_t) { return "StandIn_Host"; }
bool is_ours(ggml_backend_buffer_type_t t) { return t->iface.get_name == memory_name && t->device == &device; }

void buffer_free(ggml_backend_buffer_t b) {
    if (is_ours(b->buft)) {
        bytes_left += (long) b->size;
    }
    free(b->context);
}
void * buffer_base(ggml_backend_buffer_t b) { return b->context; }
void buffer_memset(ggml_backend_buffer_t, ggml_tensor * t, uint8_t value, size_t offset, size_t size) {
    memset((char *) t->data + offset, value, size);
}
void buffer_set(ggml_backend_buffer_t, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    memcpy((char *) t->data + offset, data, size);
}
void buffer_get(ggml_backend_buffer_t, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    memcpy(data, (const char *) t->data + offset, size);
}
bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor * from, ggml_tensor * to) {
    if (is_ours(from->buffer->buft)) {
        memcpy(to->data, from->data, ggml_nbytes(from));
        return true;
    }
    return false;
}
void buffer_clear(ggml_backend_buffer_t b, uint8_t value) { memset(b->context, value, b->size); }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    void * memory = nullptr;
    if (is_ours(type) && bytes_left.fetch_sub((long) size) < (long) size) {
        bytes_left += (long) size;
        return nullptr;
    }
    if ((!is_ours(type) && !with_pinned) || posix_memalign(&memory, 256, size)) {
        return nullptr;
    }
    memset(memory, 0xff, size); // what nobody wrote is NaN
    ggml_backend_buffer_i calls = {};
    calls.free_buffer = buffer_free;
    calls.get_base = buffer_base;
    calls.memset_tensor = buffer_memset;
    calls.set_tensor = buffer_set;
    calls.get_tensor = buffer_get;
    calls.cpy_tensor = buffer_copy;
    calls.clear = buffer_clear;
    return ggml_backend_buffer_init(type, calls, memory, size);
}
size_t alignment(ggml_backend_buffer_type_t) { return 128; }
bool is_host(ggml_backend_buffer_type_t) { return true; }

// ---- streams

struct stream {
    std::mutex lock;
    std::condition_variable filled, emptied;
    std::deque<std::function<void()>> work;
    bool ended = false, busy = false;
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    std::thread thread;

    stream() {
        auto set = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads");
        set(cpu, 1);
        thread = std::thread([this] { run(); });
    }
    ~stream() {
        {
            std::lock_guard<std::mutex> held(lock);
            ended = true;
            filled.notify_one();
        }
        thread.join();
        ggml_backend_free(cpu);
    }
    void run() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            filled.wait(held, [&] { return ended || !work.empty(); });
            if (work.empty()) {
                return;
            }
            auto next = std::move(work.front());
            work.pop_front();
            busy = true;
            held.unlock();
            if (delay_us) {
                std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
            }
            next();
            held.lock();
            busy = false;
            emptied.notify_all();
        }
    }
    void push(std::function<void()> what) {
        if (immediate) {
            wait();
            what();
            return;
        }
        std::lock_guard<std::mutex> held(lock);
        work.push_back(std::move(what));
        filled.notify_one();
    }
    void wait() {
        std::unique_lock<std::mutex> held(lock);
        emptied.wait(held, [&] { return work.empty() && !busy; });
    }
};
stream & of(ggml_backend_t b) { return *(stream *) b->context; }

// As CUDA demands it (ggml_backend_cuda_set_tensor_async).
void demand_own(const ggml_tensor * t) {
    GGML_ASSERT((t->view_src ? t->view_src->buffer : t->buffer)->buft == &memory_type);
}

const char * backend_name(ggml_backend_t) { return "StandIn0"; }
void backend_free(ggml_backend_t b) {
    delete &of(b);
    delete b;
}
void set_async(ggml_backend_t b, ggml_tensor * t, const void * data, size_t offset, size_t size) {
    demand_own(t);
    if (size >= LOSABLE && uploads_to_lose > 0 && t->buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        uploads_to_lose--;
        return;
    }
    void * to = (char *) t->data + offset;
    of(b).push([=] { memcpy(to, data, size); });
}
void get_async(ggml_backend_t b, const ggml_tensor * t, void * data, size_t offset, size_t size) {
    demand_own(t);
    const void * from = (const char *) t->data + offset;
    of(b).push([=] { memcpy(data, from, size); });
}
void synchronize(ggml_backend_t b) { of(b).wait(); }

// From so many rows on real devices sort rows by expert, and write and read where they must not if a
// row names one twice.
constexpr int SORTED_ROWS = 4;
std::atomic<long> repeats{0};

bool repeats_an_expert(const ggml_tensor * ids) {
    for (int64_t row = 0; row < ids->ne[1]; row++) {
        const int32_t * named = (const int32_t *) ((const char *) ids->data + row * ids->nb[1]);
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            if (std::find(named, named + i, named[i]) != named + i) {
                return true;
            }
        }
    }
    return false;
}

// The graph may be gone when its turn comes, so what it says now is copied.
ggml_status graph_compute(ggml_backend_t b, ggml_cgraph * graph) {
    struct copies {
        std::map<ggml_tensor *, std::unique_ptr<ggml_tensor>> of;
        std::vector<ggml_tensor *> nodes;
        ggml_tensor * copy(ggml_tensor * t) {
            auto & c = of[t];
            if (!c) {
                c.reset(new ggml_tensor(*t));
            }
            return c.get();
        }
    };
    auto c = std::make_shared<copies>();
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        ggml_tensor * node = c->copy(ggml_graph_node(graph, i));
        for (auto & source : node->src) {
            source = source ? c->copy(source) : nullptr;
        }
        c->nodes.push_back(node);
    }
    ggml_backend_t cpu = of(b).cpu;
    of(b).push([=] {
        const size_t n = c->nodes.size() + 8;
        ggml_context * ctx = ggml_init({ggml_graph_overhead_custom(n, false) + 1024, nullptr, true});
        ggml_cgraph * own = ggml_new_graph_custom(ctx, n, false);
        for (ggml_tensor * t : c->nodes) {
            ggml_graph_add_node(own, t);
        }
        ggml_backend_graph_compute(cpu, own);
        for (ggml_tensor * t : c->nodes) {
            repeats += t->op == GGML_OP_MUL_MAT_ID && t->ne[2] > SORTED_ROWS && repeats_an_expert(t->src[2]);
        }
        ggml_free(ctx);
    });
    return GGML_STATUS_SUCCESS;
}

// ---- events

struct mark {
    std::mutex lock;
    std::condition_variable reached;
    long recorded = 0, passed = 0;
};
mark & of(ggml_backend_event_t e) { return *(mark *) e->context; }

ggml_backend_event_t event_new(ggml_backend_dev_t dev) {
    return with_events ? new ggml_backend_event{dev, new mark} : nullptr;
}
void event_free(ggml_backend_dev_t, ggml_backend_event_t e) {
    delete &of(e);
    delete e;
}
void event_record(ggml_backend_t b, ggml_backend_event_t e) {
    mark & m = of(e);
    long number;
    {
        std::lock_guard<std::mutex> held(m.lock);
        number = ++m.recorded;
    }
    of(b).push([&m, number] {
        std::lock_guard<std::mutex> held(m.lock);
        m.passed = number;
        m.reached.notify_all();
    });
}
void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t e) {
    mark & m = of(e);
    std::unique_lock<std::mutex> held(m.lock);
    m.reached.wait(held, [&] { return m.passed >= m.recorded; });
}
void event_wait(ggml_backend_t b, ggml_backend_event_t e) {
    of(b).push([=] { event_synchronize(&device, e); });
}

// ---- device

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char *) {
    static ggml_guid guid = {'s', 't', 'a', 'n', 'd', '-', 'i', 'n'};
    ggml_backend_i calls = {};
    calls.get_name = backend_name;
    calls.free = backend_free;
    calls.set_tensor_async = set_async;
    calls.get_tensor_async = get_async;
    calls.synchronize = synchronize;
    calls.graph_compute = graph_compute;
    calls.event_record = event_record;
    calls.event_wait = event_wait;
    return new ggml_backend{&guid, calls, dev, new stream};
}
const char * device_name(ggml_backend_dev_t) { return "StandIn0"; }
const char * device_description(ggml_backend_dev_t) { return "a CPU that poses as a GPU"; }
void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = (size_t) bytes_left;
    *total = (size_t) 1 << 40;
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_name(dev);
    props->description = device_description(dev);
    props->type = device_type(dev);
    device_memory(dev, &props->memory_free, &props->memory_total);
    props->caps.async = props->caps.host_buffer = true;
}
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) { return &memory_type; }
ggml_backend_buffer_type_t host_buffer_type(ggml_backend_dev_t) { return &pinned_type; }
bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    const bool looks_up = op->op == GGML_OP_GET_ROWS && op->type == GGML_TYPE_I32;
    if ((looks_up && !with_lookup) || (op->op == GGML_OP_MUL_MAT_ID && !with_experts)) {
        return false;
    }
    return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), op);
}
bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) { return is_ours(type); }
bool offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT_ID ? op->ne[2] >= 32 : op->op == GGML_OP_MUL_MAT && op->ne[1] >= 32;
}

const char * registry_name(ggml_backend_reg_t) { return "StandIn"; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t) { return &device; }

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void standin_register() {
    memory_type = {{memory_name, alloc_buffer, alignment, nullptr, nullptr, nullptr}, &device, nullptr};
    pinned_type = {{pinned_name, alloc_buffer, alignment, nullptr, nullptr, is_host}, &device, nullptr};
    ggml_backend_device_i calls = {};
    calls.get_name = device_name;
    calls.get_description = device_description;
    calls.get_memory = device_memory;
    calls.get_type = device_type;
    calls.get_props = device_props;
    calls.init_backend = init_backend;
    calls.get_buffer_type = buffer_type;
    calls.get_host_buffer_type = host_buffer_type;
    calls.supports_op = supports_op;
    calls.supports_buft = supports_buft;
    calls.offload_op = offload_op;
    calls.event_new = event_new;
    calls.event_free = event_free;
    calls.event_synchronize = event_synchronize;
    device = {calls, &registry, nullptr};
    registry = {XC_BACKEND_API_VERSION, {registry_name, device_count, get_device, nullptr}, nullptr};
    ggml_backend_register(&registry);
}

// At once, in the caller's thread: what is measured then is not how threads wake each other.
EXPORT void standin_immediate(bool at_once) { immediate = at_once; }
EXPORT void standin_delay(long microseconds) { delay_us = microseconds; } // before each operation
EXPORT void standin_free_bytes(long bytes) { bytes_left = bytes; }
EXPORT void standin_lose_uploads(long n) { uploads_to_lose = n; } // the next n large copies do nothing
EXPORT void standin_lookup(bool offered) { with_lookup = offered; } // GET_ROWS of integers
EXPORT void standin_experts(bool offered) { with_experts = offered; } // MUL_MAT_ID
EXPORT void standin_pinned(bool offered) { with_pinned = offered; } // memory of the host
EXPORT long standin_repeats() { return repeats; } // products of many rows, one of which names an expert twice
EXPORT bool standin_own_streams() { return device.iface.init_backend == init_backend; } // made by nobody else
EXPORT void standin_events(bool offered) { with_events = offered; }
