/* Copies the expert selections of a decode: the scheduler's eval callback, natively filtered.
 *
 * The scheduler asks about every tensor of the graph (about 40 a layer). Answering from Python costs
 * milliseconds a decode (LOG.md), so the question is answered here, and "no" to everything leaves the
 * graph whole: an unarmed decode pays one function call a tensor.
 *
 * Compiled at first use against the headers of the installed llama-cpp-python; the one ggml function
 * that is called comes in as a pointer, so nothing is linked.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml.h"

typedef void (*tensor_get_fn)(const struct ggml_tensor *, void *, size_t, size_t);

struct observer {
    /* set by Python */
    int32_t armed;      /* answer "yes" to selections */
    int32_t n_layers;
    int32_t n_used;     /* experts a token uses */
    int32_t max_rows;
    int32_t *ids;       /* [layer][max_rows][n_used] */
    int32_t *rows;      /* [layer]: rows seen since armed */
    uint8_t *scratch;
    int64_t scratch_bytes;
    tensor_get_fn tensor_get;
    /* read by Python */
    int64_t spent_ns;   /* time spent in copying since armed */
};

static int layer_of(const struct ggml_tensor *t) {
    static const char prefix[] = "ffn_moe_topk-";
    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0) return -1;
    return atoi(t->name + sizeof prefix - 1);
}

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

bool specfit_observe(struct ggml_tensor *t, bool ask, void *user) {
    struct observer *o = user;
    if (!o->armed) return !ask;
    const int layer = layer_of(t);
    if (layer < 0 || layer >= o->n_layers) return !ask;
    if (ask) return true;

    /* A view [n_used, n_rows] into the sorted experts: its row stride is that of all experts. */
    const int64_t start = now_ns();
    const int64_t n_rows = t->ne[1];
    const size_t row_bytes = (size_t) t->ne[0] * sizeof(int32_t);
    const size_t span = (size_t) (n_rows - 1) * t->nb[1] + row_bytes;
    if (t->ne[0] == o->n_used && o->rows[layer] + n_rows <= o->max_rows && (int64_t) span <= o->scratch_bytes) {
        o->tensor_get(t, o->scratch, 0, span);
        int32_t *to = o->ids + ((size_t) layer * o->max_rows + o->rows[layer]) * o->n_used;
        for (int64_t row = 0; row < n_rows; row++)
            memcpy(to + row * o->n_used, o->scratch + row * t->nb[1], row_bytes);
        o->rows[layer] += (int32_t) n_rows;
    }
    o->spent_ns += now_ns() - start;
    return true;
}
