// Copies experts to the device beside the decodes, on a stream and a thread of their own: copying
// from memory that is not pinned blocks whoever asks for it.
#include "cache.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>

namespace xc {

namespace {

struct queue {
    std::mutex lock;
    std::condition_variable filled, emptied;
    std::deque<upload *> jobs;
    bool started = false, busy = false;
    scratch staging; // the thread's own
};

queue & uploads() {
    static queue & the_queue = *new queue; // never destroyed, since its thread never ends
    return the_queue;
}

// Devices tell of no failure (set_tensor_async returns nothing, and CUDA ends the process where it
// is noticed), so the ends of what was copied are read back.
constexpr size_t ENDS = 64;

bool copy(const upload & job) {
    cache & c = the();
    scratch & staging = uploads().staging;
    const layer & l = *job.to;
    ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(c.device);
    if (!staging.grow(host ? host : ggml_backend_cpu_buffer_type(), aligned(l.expert_bytes()) + N_PARTS * ENDS)) {
        return false;
    }
    char * staged = staging.at(0), * ends = staging.at(aligned(l.expert_bytes()));
    for (int i = 0; i < N_PARTS; i++) {
        const size_t size = l.host[i]->nb[2], checked = std::min(ENDS, size);
        const char * from = (const char *) l.host[i]->data + job.expert * size;
        if (!l.pinned) {
            memcpy(staged, from, size);
            from = staged;
            staged += size;
        }
        ggml_backend_tensor_set_async(c.uploading, l.slots[i], from, job.slot * size, size);
        ggml_backend_tensor_get_async(c.uploading, l.slots[i], ends + i * ENDS, (job.slot + 1) * size - checked,
                                      checked);
    }
    ggml_backend_synchronize(c.uploading);
    for (int i = 0; i < N_PARTS; i++) {
        const size_t size = l.host[i]->nb[2], checked = std::min(ENDS, size);
        if (memcmp(ends + i * ENDS, (const char *) l.host[i]->data + (job.expert + 1) * size - checked, checked)) {
            return false;
        }
    }
    return true;
}

void work() {
    queue & q = uploads();
    std::unique_lock<std::mutex> held(q.lock);
    for (;;) {
        q.filled.wait(held, [&] { return !q.jobs.empty(); });
        upload * job = q.jobs.front();
        q.jobs.pop_front();
        q.busy = true;
        held.unlock();
        job->done = copy(*job) || copy(*job); // once more, if it did not arrive
        held.lock();
        q.busy = false;
        if (q.jobs.empty()) {
            q.emptied.notify_all();
        }
    }
}

} // namespace

void begin_upload(upload * job) {
    queue & q = uploads();
    std::lock_guard<std::mutex> held(q.lock);
    if (!q.started) {
        std::thread(work).detach();
        q.started = true;
    }
    q.jobs.push_back(job);
    q.filled.notify_one();
}

void finish_uploads() {
    queue & q = uploads();
    std::unique_lock<std::mutex> held(q.lock);
    q.emptied.wait(held, [&] { return q.jobs.empty() && !q.busy; });
}

} // namespace xc
