// The decision of residency.py, which is made between any two decodes, with what these leave of the
// caches: in numpy it took a tenth of a cycle. So it touches little memory. A group is a layer, or
// all of them, whose experts share slots.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

namespace specfit {
namespace {

constexpr double NEVER = std::numeric_limits<double>::infinity();

struct Expert {
    std::int32_t layer, expert;
    double worth;
};

struct Pair {
    std::int32_t layer, expert;
};

class Decision {
public:
    Decision(std::int32_t groups, std::int32_t layers, std::int32_t experts, const double *saved_ms,
             const std::int32_t *slots, const double *uses, std::uint8_t *resident)
        : depth_(layers / groups), experts_(experts), saved_ms_(saved_ms), uses_(uses),
          resident_(resident), fresh_(std::size_t(layers) * experts), free_(slots, slots + groups) {
        for (std::int32_t layer = 0; layer < layers; layer++)
            for (std::int32_t expert = 0; expert < experts; expert++)
                free_[layer / depth_] -= resident[at(layer, expert)];
    }

    // Those that might come in, the most worth first.
    std::vector<Expert> eager(double upload_ms) const {
        std::vector<Expert> found;
        for (std::int32_t group = 0; group < std::int32_t(free_.size()); group++) {
            const double least = (free_[group] > 0 ? 0.0 : weakest(group).worth) + upload_ms;
            for (std::int32_t layer = group * depth_; layer < (group + 1) * depth_; layer++)
                for (std::int32_t expert = 0; expert < experts_; expert++) {
                    const double worth = uses_[at(layer, expert)] * saved_ms_[layer];
                    if (worth > least && !resident_[at(layer, expert)])
                        found.push_back({layer, expert, worth});
                }
        }
        std::stable_sort(found.begin(), found.end(),
                         [](const Expert &a, const Expert &b) { return a.worth > b.worth; });
        return found;
    }

    // Lets one in, if it is worth the upload; `victim` is then what it takes the place of.
    bool admit(const Expert &one, double upload_ms, Pair &victim) {
        std::int32_t &free = free_[one.layer / depth_];
        victim = {-1, -1};
        if (free > 0) {
            free--;
        } else {
            const Expert out = weakest(one.layer / depth_);
            if (!(one.worth > out.worth + upload_ms)) return false;
            resident_[at(out.layer, out.expert)] = 0;
            victim = {out.layer, out.expert};
        }
        resident_[at(one.layer, one.expert)] = fresh_[at(one.layer, one.expert)] = 1;
        return true;
    }

private:
    std::size_t at(std::int32_t layer, std::int32_t expert) const {
        return std::size_t(layer) * experts_ + expert;
    }

    // The first of least worth inside, but for what has just come in; none is worth too much.
    Expert weakest(std::int32_t group) const {
        Expert found{-1, -1, NEVER};
        for (std::int32_t layer = group * depth_; layer < (group + 1) * depth_; layer++)
            for (std::int32_t expert = 0; expert < experts_; expert++) {
                const std::size_t i = at(layer, expert);
                const double worth = uses_[i] * saved_ms_[layer];
                if (worth < found.worth && resident_[i] && !fresh_[i])
                    found = {layer, expert, worth};
            }
        return found;
    }

    const std::int32_t depth_, experts_;  // layers of a group, experts of a layer
    const double *const saved_ms_, *const uses_;
    std::uint8_t *const resident_;
    std::vector<std::uint8_t> fresh_;
    std::vector<std::int32_t> free_;
};

}  // namespace
}  // namespace specfit

// `after` of residency.py, which checks the sizes. `uses` [layers, experts] fade and grow by `used`,
// `resident` [layers, experts] is brought up to date. Writes `loads` and `victims`, with room for
// `most`, and returns how many they are; -1 if there is no memory.
extern "C" std::int32_t specfit_residency_after(
    std::int32_t groups, std::int32_t layers, std::int32_t experts, const double *used, double fade,
    const double *saved_ms, double upload_ms, const std::int64_t *bytes_each, double cycle_bytes,
    const std::int32_t *slots, double *uses, std::uint8_t *resident, std::int32_t most,
    specfit::Pair *loads, specfit::Pair *victims) noexcept {
    using namespace specfit;
    try {
        const std::size_t size = std::size_t(layers) * experts;
        for (std::size_t i = 0; i < size; i++) uses[i] = uses[i] * fade + used[i];
        Decision decision(groups, layers, experts, saved_ms, slots, uses, resident);
        std::int32_t n = 0;
        for (const Expert &one : decision.eager(upload_ms)) {
            const double bytes = double(bytes_each[one.layer]);
            if (bytes > cycle_bytes || n == most) break;
            if (!decision.admit(one, upload_ms, victims[n])) continue;
            cycle_bytes -= bytes;
            loads[n++] = {one.layer, one.expert};
        }
        return n;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}
