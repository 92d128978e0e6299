#include "cache.h"

#include <algorithm>
#include <exception>

using namespace xc;

namespace {

// C++ exceptions must not reach Python: what remains of them is a sentence.
template <typename Result, typename Call> Result guarded(Result otherwise, Call call) {
    try {
        return call();
    } catch (const std::exception & error) {
        trouble(std::string("the expert cache met an error: ") + error.what());
    } catch (...) {
        trouble("the expert cache met an error");
    }
    return otherwise;
}

bool open_device(const std::string & name) {
    cache & c = the();
    if (!c.layers.empty()) {
        trouble("the expert cache is off: another model is using it");
        return false;
    }
    if (c.compute && c.device_name == name) {
        return true;
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
    if (!device) {
        trouble("the expert cache is off: llama.cpp has no device " + name);
        return false;
    }
    ggml_backend_ptr compute(ggml_backend_dev_init(device, nullptr)), uploading(ggml_backend_dev_init(device, nullptr));
    ggml_backend_ptr cpu(c.cpu ? nullptr : ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    if (!compute || !uploading || !(c.cpu || cpu)) {
        trouble("the expert cache is off: " + name + " cannot be used beside llama.cpp");
        return false;
    }
    c.on_device.buffer.reset();
    c.on_host.buffer.reset();
    if (c.compute) {
        ggml_backend_event_free(c.fetched);
        ggml_backend_free(c.compute);
        ggml_backend_free(c.uploading);
    }
    c.device = device;
    c.device_name = name;
    c.compute = compute.release();
    c.uploading = uploading.release();
    c.cpu = c.cpu ? c.cpu : cpu.release();
    c.fetched = nullptr;
    use_device(device);
    return true;
}

void reset_counters() {
    for (auto & [number, l] : the().layers) {
        std::fill(l->hits.begin(), l->hits.end(), 0);
        std::fill(l->misses.begin(), l->misses.end(), 0);
    }
    the().totals = {};
}

} // namespace

XC_API bool xc_open(const xc_options * options) {
    return guarded(false, [&] {
        const std::string mismatch = abi_trouble(options->ggml_version ? options->ggml_version : XC_GGML_VERSION);
        if (!mismatch.empty()) {
            trouble(mismatch);
            return false;
        }
        cache & c = the();
        {
            std::lock_guard<std::mutex> held(c.lock);
            if (!open_device(options->device)) {
                return false;
            }
            c.options = *options;
            c.totals = {};
            if (options->shared) {
                note_streams(c.device);
            }
            c.options.device = c.options.ggml_version = nullptr; // Python's memory
            if (options->events && !c.fetched) {
                c.fetched = ggml_backend_event_new(c.device);
            } else if (!options->events && c.fetched) {
                ggml_backend_event_free(c.fetched);
                c.fetched = nullptr;
            }
        }
        static bool registered = (register_backend(), true);
        return registered;
    });
}

XC_API void * xc_buffer_type() { return weight_type(); }

XC_API void xc_expert_bytes(int64_t * bytes) {
    std::lock_guard<std::mutex> held(the().lock);
    std::fill(bytes, bytes + the().options.n_layers, 0);
    for (auto & [number, l] : the().layers) {
        bytes[number] = (int64_t) l->expert_bytes();
    }
}

XC_API void xc_allocate(int32_t * slots) {
    std::lock_guard<std::mutex> held(the().lock);
    const int n = the().options.n_layers;
    const bool done = guarded(false, [&] { return allocate(slots), true; });
    for (int i = 0; i < n; i++) {
        if (!done || !the().layers.count(i)) {
            slots[i] = 0;
        }
    }
}

XC_API bool xc_swap(int32_t layer, int32_t incoming, int32_t outgoing) {
    std::lock_guard<std::mutex> held(the().lock);
    return guarded(false, [&] {
        const auto found = the().layers.find(layer);
        return found != the().layers.end() && swap(*found->second, incoming, outgoing);
    });
}

XC_API bool xc_commit() {
    std::lock_guard<std::mutex> held(the().lock);
    return guarded(false, commit);
}

XC_API void xc_residency(uint8_t * resident) {
    std::lock_guard<std::mutex> held(the().lock);
    const int n = the().options.n_experts;
    std::fill(resident, resident + (size_t) the().options.n_layers * n, 0);
    for (auto & [number, l] : the().layers) {
        for (int expert = 0; expert < l->n_experts; expert++) {
            resident[(size_t) number * n + expert] = l->resident(expert);
        }
    }
}

XC_API void xc_counters(int64_t * hits, int64_t * misses, xc_totals * totals) {
    std::lock_guard<std::mutex> held(the().lock);
    const int n = the().options.n_experts;
    std::fill(hits, hits + (size_t) the().options.n_layers * n, 0);
    std::fill(misses, misses + (size_t) the().options.n_layers * n, 0);
    for (auto & [number, l] : the().layers) {
        std::copy(l->hits.begin(), l->hits.end(), hits + (size_t) number * n);
        std::copy(l->misses.begin(), l->misses.end(), misses + (size_t) number * n);
    }
    *totals = the().totals;
}

XC_API void xc_reset_counters() {
    std::lock_guard<std::mutex> held(the().lock);
    reset_counters();
}

XC_API void xc_take_uses(double * uses, int64_t * sums) {
    std::lock_guard<std::mutex> held(the().lock);
    const size_t n = the().options.n_experts;
    std::fill(uses, uses + the().options.n_layers * n, 0.0);
    std::fill(sums, sums + the().options.n_layers * 3, 0);
    for (auto & [number, l] : the().layers) {
        double * of_layer = uses + number * n;
        int64_t * sum = sums + number * 3;
        for (int expert = 0; expert < l->n_experts; expert++) {
            const int64_t hits = l->hits[expert], misses = l->misses[expert];
            of_layer[expert] = double(hits + misses);
            sum[0] += hits;
            sum[1] += misses > 0;
            sum[2] += misses;
        }
    }
    reset_counters();
}
