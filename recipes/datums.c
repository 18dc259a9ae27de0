/* datums.c - from rollouts to training examples and back. */
#include <string.h>

#include "base/mem.h"
#include "tinkc/recipes.h"

/* One example of a rollout: tokens begin .. end, of which those from `first` on are trained. */
typedef struct piece {
    size_t begin, first, end;
} piece;

/* The next example after *at (initially 0). With split, each run of sampled tokens is an example of
 * its own, with everything before it as context. False at the end; skips an example that has no
 * sampled token, or whose first token is sampled. */
static bool next_piece(const tinkc_rollout *r, bool split, size_t *at, piece *out)
{
    while (*at < r->tokens.len) {
        size_t e = 0, begin = 0;
        while (e < r->n_examples && r->ends[e] <= *at)
            e++;
        size_t end = e < r->n_examples ? r->ends[e] : r->tokens.len;
        begin = e ? r->ends[e - 1] : 0;
        size_t first = *at;
        while (first < end && r->mask.data[first] == 0)
            first++;
        size_t stop = end;
        for (size_t i = first; split && i < stop; i++)
            if (r->mask.data[i] == 0)
                stop = i;
        *at = first < end ? stop : end;
        if (first < end && first > begin) {
            *out = (piece){ begin, first, stop };
            return true;
        }
    }
    return false;
}

bool tinkc_recipe_add_rollout(tinkc_batch *batch, const tinkc_rollout *r, const float *advantages,
                              bool split, tinkc_error *err)
{
    tinkc_error local;
    size_t at = 0;
    piece p;
    if (!tkc_enter(&err, &local))
        return false;
    if (r->error)
        return tkc_fail(err, TINKC_E_ARGUMENT, "a rollout that failed cannot be trained on: %s",
                        r->error);
    while (!tkc_failed(err) && next_piece(r, split, &at, &p)) {
        size_t n = p.end - p.first;
        float *masked = tkc_alloc(NULL, n * sizeof *masked, err);
        for (size_t i = 0; masked && i < n; i++)
            masked[i] = r->mask.data[p.first + i] > 0 ? advantages[p.first + i] : 0;
        if (masked)
            tinkc_batch_add_rl(batch, r->tokens.data + p.begin, p.end - p.begin, p.first - p.begin,
                               r->logprobs.data + p.first, masked, err);
        tkc_release(NULL, masked, n * sizeof *masked);
    }
    return !tkc_failed(err);
}

size_t tinkc_recipe_read_logprobs(const tinkc_fwdbwd *got, size_t first, const tinkc_rollout *r,
                                  bool split, float *out)
{
    size_t at = 0, n = 0;
    piece p;
    memset(out, 0, r->tokens.len * sizeof *out);
    for (; next_piece(r, split, &at, &p); n++) {
        tinkc_f32s lp = tinkc_tensor_f32s(tinkc_fwdbwd_output(got, first + n, "logprobs"));
        for (size_t i = p.first; i < p.end; i++)
            if (r->mask.data[i] > 0 && i - p.begin - 1 < lp.len)
                out[i] = lp.data[i - p.begin - 1];
    }
    return n;
}
