/* provenance.c - where the tokens of an example come from: spans that cover two of its fields.
 *
 * May touch: the example and the arena it is given. Must not: know which service uses them, and how.
 */
#include <string.h>

#include "client/train/train_batch.h"
#include "base/str.h"

static bool check_span(const tinkc_span *s, const char *list, size_t i, tinkc_error *err)
{
    if (s->reserved_int || !tkc_all_zero(s->reserved, sizeof s->reserved))
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: span %zu: reserved must be zero", list, i);
    if (s->kind != TINKC_SPAN_PROMPT && s->kind != TINKC_SPAN_SAMPLED)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: span %zu has no kind", list, i);
    if (!s->sequence_id || !s->sequence_id[0])
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: span %zu: sequence_id must not be empty", list,
                        i);
    if (s->offset < 0 || s->length < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: span %zu: %s must not be negative", list, i,
                        s->offset < 0 ? "offset" : "length");
    return true;
}

static const tinkc_span *copy_spans(const tinkc_span *spans, size_t n, const char *list,
                                    size_t *bytes, tkc_arena *arena, tinkc_error *err)
{
    enum { NUMBERS = 24 }; /* bytes of a span besides its name, at most */
    tinkc_span *copy = tkc_arena_array(arena, n + 1, sizeof *copy, err); /* never NULL for n = 0 */
    for (size_t i = 0; copy && i < n; i++) {
        if (!check_span(&spans[i], list, i, err))
            return NULL;
        copy[i] = spans[i];
        copy[i].sequence_id = tkc_arena_cstr(arena, spans[i].sequence_id, err);
        *bytes += strlen(spans[i].sequence_id) + NUMBERS;
    }
    return tkc_failed(err) ? NULL : copy;
}

bool tkc_provenance_set(tkc_example *e, const tinkc_span *input, size_t n_input,
                        const tinkc_span *targets, size_t n_targets, tkc_arena *arena,
                        tinkc_error *err)
{
    if (e->input_spans)
        return tkc_fail(err, TINKC_E_ARGUMENT, "provenance: is set already");
    if (!input || !targets)
        return tkc_fail(err, TINKC_E_ARGUMENT, "%s: must not be NULL", input ? "targets" : "input");
    e->input_spans = copy_spans(input, n_input, "input", &e->bytes, arena, err);
    if (e->input_spans)
        e->target_spans = copy_spans(targets, n_targets, "targets", &e->bytes, arena, err);
    e->n_input_spans = n_input;
    e->n_target_spans = n_targets;
    return e->input_spans && e->target_spans;
}

static bool check_cover(const tinkc_span *spans, size_t n, const char *list, int64_t want,
                        tinkc_error *err)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        if (__builtin_add_overflow(sum, spans[i].length, &sum))
            sum = INT64_MAX;
    if (sum == want)
        return true;
    return tkc_fail(err, TINKC_E_ARGUMENT, "%s: the spans cover %lld of %lld tokens", list,
                    (long long)sum, (long long)want);
}

bool tkc_provenance_check(const tkc_example *e, const tkc_tensor *targets, tinkc_error *err)
{
    if (!e->input_spans)
        return true;
    const tinkc_input input = { .chunks = e->chunks, .n_chunks = e->n_chunks };
    int64_t length = tinkc_input_length(&input);
    if (length < 0)
        return tkc_fail(err, TINKC_E_ARGUMENT,
                        "input: spans need the length of every chunk: give images expected_tokens");
    if (!check_cover(e->input_spans, e->n_input_spans, "input", length, err))
        return false;
    /* Of other targets the length in tokens is not known here. */
    bool flat = targets && !targets->sparse && targets->shape.len <= 1;
    return !flat ||
           check_cover(e->target_spans, e->n_target_spans, "targets", (int64_t)targets->count, err);
}
