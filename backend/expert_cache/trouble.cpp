#include "cache.h"

#include <deque>

namespace xc {

namespace {
std::mutex sentences_lock; // not the cache's: the uploading thread has something to say, too
std::deque<std::string> sentences;
} // namespace

void trouble(const std::string & sentence) {
    std::lock_guard<std::mutex> held(sentences_lock);
    for (const auto & known : sentences) {
        if (known == sentence) {
            return;
        }
    }
    if (sentences.size() < 16) {
        sentences.push_back(sentence);
    }
}

// ggml checks XC_BACKEND_API_VERSION only, and did not raise it each time that members were added.
// So the version has to be the one that the mirror was written for; and as builds can be patched,
// the members behind each table of functions must be where ggml's own functions find them.
std::string abi_trouble(const std::string & version) {
    if (version != ggml_version()) {
        return "the expert cache is off: it was made for ggml " + version + ", and this is " + ggml_version();
    }
    const std::string refusal = "the expert cache is off: this build of ggml lays out its backends differently";
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!device || device->reg != ggml_backend_dev_backend_reg(device) ||
        device->reg->api_version != XC_BACKEND_API_VERSION ||
        ggml_backend_dev_backend_reg(ggml_backend_reg_dev_get(device->reg, 0)) != device->reg) {
        return refusal;
    }
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), 4096));
    if (!backend || !buffer || backend->device != ggml_backend_get_device(backend.get())) {
        return refusal;
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (buffer->buft != ggml_backend_buffer_get_type(buffer.get()) ||
        buffer->size != ggml_backend_buffer_get_size(buffer.get()) ||
        buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS ||
        buffer->buft->device != ggml_backend_buft_get_device(buffer->buft)) {
        return refusal;
    }
    return "";
}

} // namespace xc

XC_API bool xc_trouble(char * text, size_t size) {
    std::lock_guard<std::mutex> held(xc::sentences_lock);
    if (xc::sentences.empty() || !size) {
        return false;
    }
    text[xc::sentences.front().copy(text, size - 1)] = 0;
    xc::sentences.pop_front();
    return true;
}
