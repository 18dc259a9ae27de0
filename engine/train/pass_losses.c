/* pass_losses.c - targets, losses and gradients of the passes in a microbatch, for the device.
 *
 * May touch: outputs and sums of the passes. Must not: know the model. Rows come in order, so the
 * sums are added in the order of tokens and datums.
 */
#include <assert.h>
#include <math.h>
#include <string.h>
#include "train/pass_state.h"

void tke_pass_targets(const tke_pass_losses *p, size_t vocab, int32_t *targets)
{
    for (size_t i = 0; i < p->n_items; i++) {
        const tke_datum *d = p->items[i].datum;
        int32_t *to = targets + p->items[i].row * p->max_k;
        for (size_t t = 0; t < d->n; t++, to += p->max_k)
            for (size_t j = 0; j < p->max_k; j++) {
                int64_t id = j < d->k ? d->targets[t * d->k + j] : -1;
                to[j] = id >= 0 && (uint64_t)id < vocab ? (int32_t)id : -1;
            }
    }
}

static void fail_token(const tke_item *item, size_t position, bool loss)
{
    tke_pass_state *s = item->state;
    bool ratio = tke_loss_row_of(&s->pass->loss)->ratios;
    s->failed = true; /* the first message stays */
    s->pass->not_finite |= !loss;
    /* Log-probs that are not finite are a server error; a loss that overflows is the request's. */
    tkc_fail(&s->pass->err, loss ? TINKC_E_BAD_REQUEST : TINKC_E_SERVER,
             "datum %zu: the %s at position %zu is not finite", item->index,
             !loss   ? "log-prob"
             : ratio ? "loss (ratio of log-probs)"
                     : "loss (weight times log-prob)",
             position);
}

/* ---- custom losses ----
 * The first sweep collects the log-probs of a sequence and, at its last row, runs the graph; the
 * second hands out the gradients. */

bool tke_pass_losses_prepare(tke_pass_losses *p, tkc_arena *arena, tinkc_error *err)
{
    for (size_t i = 0; i < p->n_items; i++) {
        tke_item *item = &p->items[i];
        size_t n = item->datum->n * item->datum->k;
        if (!item->state->pass->loss.graph)
            continue;
        item->lp = tkc_arena_array(arena, n, sizeof *item->lp, err);
        item->grads = tkc_arena_array(arena, n, sizeof *item->grads, err);
        if (tkc_failed(err))
            return false;
    }
    return true;
}

static void run_graph(tke_item *item, const _Atomic(bool) *stop)
{
    const tke_datum *d = item->datum;
    tke_pass_state *s = item->state;
    const tke_graph *g = s->pass->loss.graph;
    /* without a backward pass, too: they say which tokens carry loss */
    tke_graph_result result = { .grads = item->grads };
    tinkc_error err = { 0 };
    if (s->failed)
        return;
    tke_graph_datum datum = { item->lp, d->n, d->k, d->custom, stop };
    if (!tke_graph_run(g, &datum, &result, &err)) {
        s->failed = true;
        tkc_fail(&s->pass->err, err.code, "datum %zu: %s", item->index, err.message);
        return;
    }
    s->sums.loss += result.loss;
    bool finite = isfinite(s->sums.loss);
    for (size_t i = 0; i < tke_graph_n_metrics(g); i++) {
        s->sums.custom[i] += result.metrics[i];
        finite = finite && isfinite(s->sums.custom[i]);
    }
    if (!finite) /* each is, but they are reported as sums */
        s->failed =
            !tkc_fail(&s->pass->err, TINKC_E_BAD_REQUEST,
                      "datum %zu: the sum of the losses or of a metric is not finite", item->index);
}

static void custom_gather(tke_item *item, size_t position, const tke_real *lp,
                          const _Atomic(bool) *stop)
{
    const tke_datum *d = item->datum;
    for (size_t j = 0; j < d->k; j++) {
        if (!isfinite(lp[j]))
            fail_token(item, position, false);
        item->lp[position * d->k + j] = (double)lp[j];
    }
    if (position + 1 == d->n)
        run_graph(item, stop);
}

static void custom_row(const tke_item *item, size_t position, tke_real *g)
{
    const tke_datum *d = item->datum;
    tke_pass_state *s = item->state;
    bool any = false;
    for (size_t j = 0; j < d->k; j++) {
        size_t at = position * d->k + j;
        item->logprobs[at] = (float)item->lp[at];
        g[j] = s->failed ? 0 : (tke_real)item->grads[at];
        any = any || g[j] != 0;
    }
    s->sums.n_tokens++;
    s->sums.n_loss_tokens += any;
}

/* ---- rows ---- */

/* First sweep: gathers what a loss over whole sequences needs. */
static void row_gather(tke_item *item, size_t position, const tke_real *lp,
                       const _Atomic(bool) *stop)
{
    if (item->lp) {
        custom_gather(item, position, lp, stop);
        return;
    }
    const tke_loss_row *row = tke_loss_row_of(&item->state->pass->loss);
    if (row->gather)
        row->gather(&(tke_token){ item->datum, position, lp, NULL }, &item->whole);
}

/* Loss of one row; g[k] = d loss / d lp. */
static void row_loss(const tke_item *item, size_t position, const tke_real *lp, tke_real *g)
{
    const tke_datum *d = item->datum;
    tke_pass_state *s = item->state;
    for (size_t j = 0; j < d->k; j++) {
        if (!isfinite(lp[j]))
            fail_token(item, position, false);
        item->logprobs[position * d->k + j] = (float)lp[j];
    }
    tke_real l =
        tke_loss_token(&s->pass->loss, &(tke_token){ d, position, lp, &item->whole }, g, &s->sums);
    item->elementwise[position] = (float)l;
    if (!isfinite(l)) /* where the loss is finite, so is its gradient */
        fail_token(item, position, true);
    if (s->failed) /* its gradient is discarded: skip the work */
        memset(g, 0, d->k * sizeof *g);
}

void tke_pass_losses_run(void *user, size_t first, size_t n, const tke_real *lp, tke_real *g)
{
    tke_pass_losses *p = user;
    if (first == 0)
        p->at = 0;
    for (size_t row = first; row < first + n; row++, lp += p->max_k) {
        while (row >= p->items[p->at].row + p->items[p->at].datum->n)
            p->at++;
        tke_item *item = &p->items[p->at];
        assert(p->at < p->n_items && row >= item->row);
        if (!g) {
            row_gather(item, row - item->row, lp, p->stop);
            continue;
        }
        if (item->lp)
            custom_row(item, row - item->row, g);
        else
            row_loss(item, row - item->row, lp, g);
        for (size_t j = item->datum->k; j < p->max_k; j++)
            g[j] = 0;
        g += p->max_k;
    }
}
