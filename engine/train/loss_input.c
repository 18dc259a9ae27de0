/* loss_input.c - makes a datum from named inputs; checks names, types, lengths and values.
 *
 * May touch: its arguments. Must not: compute a loss.
 */
#include <assert.h>
#include <math.h>
#include "train/loss.h"

static const struct {
    const char *name;
    bool is_float;
} known[TKE_INPUTS] = {
    [TKE_INPUT_TARGETS] = { "target_tokens", false },
    [TKE_INPUT_WEIGHTS] = { "weights", true },
    [TKE_INPUT_LOGPROBS] = { "logprobs", true },
    [TKE_INPUT_ADVANTAGES] = { "advantages", true },
    [TKE_INPUT_CLIP_LOW] = { "clip_low_threshold", true },
    [TKE_INPUT_CLIP_HIGH] = { "clip_high_threshold", true },
};

static bool check_input(const tke_input *in, int which, const tke_loss *loss, size_t n,
                        size_t index, tinkc_error *err)
{
    const char *name = known[which].name;
    bool soft = tke_loss_row_of(loss)->soft;
    if (in->is_float != known[which].is_float)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' must be %s", index, name,
                        known[which].is_float ? "float32" : "int64");
    if (in->rows != n)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: '%s' has length %zu, model_input has %zu", index, name,
                        in->rows, n);
    if (in->cols == 0 || (!soft && in->cols != 1))
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' must have one column, not %zu",
                        index, name, in->cols);
    if (!in->is_float)
        return true;
    const float *x = in->data;
    for (size_t i = 0; i < in->rows * in->cols; i++)
        if (!isfinite(x[i]))
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "NonFiniteInTensor: datum %zu: '%s' holds NaN or infinity at %zu",
                            index, name, i);
    return true;
}

static void bind_one(tke_datum *d, int which, const tke_input *in)
{
    assert(in->rows == d->n && which >= 0 && which < TKE_INPUTS);
    switch (which) {
    case TKE_INPUT_TARGETS:
        d->targets = in->data;
        d->k = in->cols;
        break;
    case TKE_INPUT_WEIGHTS:
        d->weights = in->data;
        break;
    case TKE_INPUT_LOGPROBS:
        d->logprobs = in->data;
        break;
    case TKE_INPUT_ADVANTAGES:
        d->advantages = in->data;
        break;
    case TKE_INPUT_CLIP_LOW:
        d->clip_low = in->data;
        break;
    default:
        d->clip_high = in->data;
        break;
    }
}

bool tke_datum_bind(tke_datum *d, const tke_loss *loss, const tke_input *inputs, size_t n_inputs,
                    bool forward_only, size_t index, tinkc_error *err)
{
    const tke_input *found[TKE_INPUTS] = { 0 };
    const tke_loss_row *row = tke_loss_row_of(loss);
    uint32_t needs = forward_only ? row->needs_forward : row->needs;
    *d = (tke_datum){ .tokens = d->tokens, .n = d->n, .carry = row->carry };
    if (row->carry == TKE_CARRY_LOGPROBS && loss->strict) /* nothing is masked */
        d->carry = TKE_CARRY_ALL;
    for (size_t i = 0; i < n_inputs; i++) {
        int which = 0;
        while (which < TKE_INPUTS && !tkc_str_is(inputs[i].name, known[which].name))
            which++;
        if (which == TKE_INPUTS && !loss->strict && tkc_str_is(inputs[i].name, "mask"))
            continue;
        if (which == TKE_INPUTS || !((needs | row->takes) & 1u << which))
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: %s takes no input '%.*s'", index,
                            row->name, (int)(inputs[i].name.len < 60 ? inputs[i].name.len : 60),
                            inputs[i].name.data);
        if (found[which])
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' is given twice", index,
                            known[which].name);
        if (!check_input(&inputs[i], which, loss, d->n, index, err))
            return false;
        found[which] = &inputs[i];
        bind_one(d, which, &inputs[i]);
    }
    for (int which = 0; which < TKE_INPUTS; which++)
        if ((needs & 1u << which) && !found[which])
            return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: '%s' is missing; %s needs it",
                            index, known[which].name, row->name);
    if (found[TKE_INPUT_WEIGHTS] && found[TKE_INPUT_WEIGHTS]->cols != d->k)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: 'weights' has %zu columns, 'target_tokens' has %zu", index,
                        found[TKE_INPUT_WEIGHTS]->cols, d->k);
    return true;
}

/* ---- custom losses ---- */

static const tke_input *find_input(const tke_input *inputs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (tkc_str_is(inputs[i].name, name))
            return &inputs[i];
    return NULL;
}

/* The rank that is declared is the one that the data have. Without dimensions they are a list, or a
 * scalar if one was declared. */
static bool check_rank(const tke_input *in, const tke_graph *g, const char *name, int64_t declared,
                       size_t index, tinkc_error *err)
{
    int64_t rank = in->rank ? in->rank : declared == 0 ? 0 : 1;
    if (rank != declared || (rank == 0 && in->rows != 1))
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: '%.*s' has rank %lld, but loss '%s' declared %s with rank %lld",
                        index, (int)in->name.len, in->name.data, (long long)(rank == 0 ? 1 : rank),
                        tke_graph_name(g), name, (long long)declared);
    return true;
}

static bool check_finite(const tke_input *in, size_t index, tinkc_error *err)
{
    const float *x = in->data;
    for (size_t i = 0; in->is_float && i < in->rows * in->cols; i++)
        if (!isfinite(x[i]))
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "NonFiniteInTensor: datum %zu: '%.*s' holds NaN or infinity at %zu",
                            index, (int)in->name.len, in->name.data, i);
    return true;
}

static bool bind_targets(tke_datum *d, const tke_graph *g, const tke_input *in, size_t index,
                         tinkc_error *err)
{
    if (in->is_float)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: 'target_tokens' must be int64",
                        index);
    if (!check_rank(in, g, "logprobs", tke_graph_input_rank(g, 0), index, err))
        return false;
    if (in->rows != d->n || in->cols == 0)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "datum %zu: 'target_tokens' has %zu rows of %zu, model_input has %zu",
                        index, in->rows, in->cols, d->n);
    d->targets = in->data;
    d->k = in->cols;
    return true;
}

bool tke_datum_bind_custom(tke_datum *d, const tke_graph *g, const tke_input *inputs,
                           size_t n_inputs, tkc_arena *arena, size_t index, tinkc_error *err)
{
    size_t n = tke_graph_n_inputs(g);
    *d = (tke_datum){ .tokens = d->tokens, .n = d->n };
    tke_graph_tensor *custom = tkc_arena_array(arena, n, sizeof *custom, err);
    if (!custom)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char *name = i ? tke_graph_input_name(g, i) : "target_tokens";
        const tke_input *in = find_input(inputs, n_inputs, name);
        if (!in)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "datum %zu: '%s' is missing; loss '%s' needs it", index, name,
                            tke_graph_name(g));
        if (i == 0) {
            if (!bind_targets(d, g, in, index, err))
                return false;
            continue;
        }
        if (!check_rank(in, g, name, tke_graph_input_rank(g, i), index, err) ||
            !check_finite(in, index, err))
            return false;
        custom[i - 1] = (tke_graph_tensor){ in->data, in->is_float, in->rows, in->cols };
    }
    d->custom = custom;
    return true;
}

/* May position i, target j carry gradient? Only then must its target be a token. */
static bool carries(const tke_datum *d, size_t i, size_t j)
{
    if (d->custom || d->carry == TKE_CARRY_ALL) /* of a custom loss only the graph knows */
        return true;
    if (d->weights)
        return d->weights[i * d->k + j] != 0;
    if (d->carry == TKE_CARRY_LOGPROBS && d->logprobs[i] != 0)
        return true;
    return d->advantages && d->advantages[i] != 0;
}

bool tke_datum_check(const tke_datum *d, size_t vocab, size_t context, size_t index,
                     tinkc_error *err)
{
    if (d->n == 0)
        return tkc_fail(err, TINKC_E_BAD_REQUEST, "datum %zu: model_input is empty", index);
    if (d->n > context)
        return tkc_fail(err, TINKC_E_BAD_REQUEST,
                        "PromptTooLong: datum %zu has %zu tokens, the context is %zu", index, d->n,
                        context);
    for (size_t i = 0; i < d->n; i++)
        if (d->tokens[i] < 0 || (size_t)d->tokens[i] >= vocab)
            return tkc_fail(err, TINKC_E_BAD_REQUEST,
                            "datum %zu: token %d at %zu is outside the vocabulary of %zu", index,
                            (int)d->tokens[i], i, vocab);
    for (size_t i = 0; i < d->n; i++)
        for (size_t j = 0; j < d->k; j++) {
            int64_t t = d->targets[i * d->k + j];
            if ((t < 0 || (uint64_t)t >= vocab) && carries(d, i, j))
                return tkc_fail(err, TINKC_E_BAD_REQUEST,
                                "datum %zu: target %lld at %zu is outside the vocabulary of %zu",
                                index, (long long)t, i, vocab);
        }
    return true;
}
