/* The k largest of rows of logits and their softmax probabilities; see likeliest.py. */

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

enum { LANES = 16, PART = 16384 };

/* e^x for x <= 0 within 2e-7: Cody and Waite's reduction and a polynomial, without a branch, so
   that the compiler does several at once. */
static inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float n = x * 1.44269504f + magic;
    int32_t bits;
    memcpy(&bits, &n, sizeof bits);
    n -= magic;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    bits = (int32_t)((uint32_t)bits << 23) + 0x3f800000;
    /* bits held the rounded number in its low bits, below those of magic's own value */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

/* Leaves e^(x - top) in place of x. */
WIDE static double sum_of_exps(float *row, int64_t n, float top) {
    for (int64_t i = 0; i < n; i++) row[i] = exp_of(row[i] - top);
    /* Floats hold the sum of some thousands well enough. */
    double total = 0;
    for (int64_t i = 0; i < n; i += PART) {
        float sums[LANES] = {0};
        int64_t end = i + PART < n ? i + PART : n, at = i;
        for (; at + LANES <= end; at += LANES)
            for (int j = 0; j < LANES; j++) sums[j] += row[at + j];
        for (; at < end; at++) sums[0] += row[at];
        for (int j = 0; j < LANES; j++) total += sums[j];
    }
    return total;
}

/* logits: rows of `stride` floats, of which ids[0..n-1], or without ids the first n, are looked at.
   scratch: n floats.
   places, probs: [rows, k], best first, ties to the lower place; k <= n. */
void specfit_likeliest(const float *logits, int64_t rows, int64_t stride, const int32_t *ids,
                       int64_t n, int64_t k, float *scratch, int64_t *places, double *probs) {
    for (int64_t r = 0; r < rows; r++, logits += stride, places += k, probs += k) {
        for (int64_t i = 0; i < n; i++) scratch[i] = logits[ids ? ids[i] : i];
        int64_t held = 0;
        float least = 0;
        for (int64_t i = 0; i < n; i++) {
            float value = scratch[i];
            if (held == k && !(value > least)) continue;
            int64_t at = held < k ? held++ : k - 1;
            while (at > 0 && scratch[places[at - 1]] < value) {
                places[at] = places[at - 1];
                at--;
            }
            places[at] = i;
            least = scratch[places[held - 1]];
        }
        double total = sum_of_exps(scratch, n, scratch[places[0]]);
        for (int64_t i = 0; i < k; i++) probs[i] = scratch[places[i]] / total;
    }
}
