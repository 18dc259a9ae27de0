/* run_curve.c - see run_curve.h; and what the page gets of all runs. */
#include "service/core/runs.h"
#include "service/core/sessions.h"
#include "service/worker/run_curve.h"

#include <math.h>

#include "base/json_write.h"
#include "service/core/registry.h"
#include "service/core/service_state.h"

enum { MOST_RUNS = 6 }; /* that the page gets, the newest */

static void thin_out(tke_curve *c)
{
    for (size_t i = 0; 2 * i < c->n; i++)
        c->points[i] = c->points[2 * i];
    c->n = (c->n + 1) / 2;
    c->every *= 2;
}

void tke_curve_step(tke_curve *c)
{
    int64_t step = c->steps++, tokens = c->tokens;
    double loss = tokens > 0 ? c->sum / (double)tokens : NAN;
    c->sum = 0;
    c->tokens = 0;
    if (!c->every)
        c->every = 1;
    if (!isfinite(loss) || step % c->every)
        return;
    if (c->n == TKE_CURVE_POINTS)
        thin_out(c);
    if (step % c->every)
        return;
    c->points[c->n].step = step;
    c->points[c->n++].loss = loss;
}

/* Locks: needs svc->lock. */
void tke_run_note_loss(tke_service *svc, tke_run *run, double loss_sum, int64_t tokens)
{
    tinkc_error ignored = { 0 };
    if (run->by_python && !run->curve)
        run->curve = tkc_zalloc(svc->a, sizeof *run->curve, &ignored);
    if (run->curve)
        tke_curve_pass(run->curve, loss_sum, tokens);
}

static void write_run(const tke_run *run, tkc_jsonw *w)
{
    const char *name = run->session ? run->session->display_name : NULL;
    tkc_jsonw_object(w);
    tkc_jsonw_key(w, "id");
    tkc_jsonw_cstr(w, run->id);
    tkc_jsonw_key(w, "name");
    tkc_jsonw_cstr(w, name && *name ? name : run->id);
    tkc_jsonw_key(w, "model");
    tkc_jsonw_cstr(w, run->base_model);
    tkc_jsonw_key(w, "rank");
    tkc_jsonw_i64(w, run->spec.rank);
    tkc_jsonw_key(w, "steps");
    tkc_jsonw_i64(w, run->curve->steps);
    tkc_jsonw_key(w, "changed_ms");
    tkc_jsonw_i64(w, run->last_request_us / 1000);
    tkc_jsonw_key(w, "points");
    tkc_jsonw_array(w);
    for (size_t i = 0; i < run->curve->n; i++) {
        tkc_jsonw_array(w);
        tkc_jsonw_i64(w, run->curve->points[i].step);
        tkc_jsonw_double(w, run->curve->points[i].loss);
        tkc_jsonw_end(w);
    }
    tkc_jsonw_end(w);
    tkc_jsonw_end(w);
}

/* Locks: needs svc->lock. The newest run with a curve that is older than `than`; NULL = there is none. */
static const tke_run *next_newest(tke_service *svc, const char *owner, const tke_run *than)
{
    const tke_run *run;
    const tke_run *best = NULL;
    for (size_t at = 0; (run = tke_next_run(svc, &at));) {
        bool mine = !owner || tkc_cstr_eq(run->owner, owner);
        if (mine && run->curve && run->curve->n &&
            (!than || run->last_request_us < than->last_request_us) &&
            (!best || run->last_request_us > best->last_request_us))
            best = run;
    }
    return best;
}

bool tke_service_curves(tke_service *svc, const char *owner, tkc_buf *out, tinkc_error *err)
{
    tkc_jsonw w;
    tkc_jsonw_open(&w, out, err);
    tkc_jsonw_array(&w);
    pthread_mutex_lock(&svc->lock);
    const tke_run *run = NULL;
    for (int i = 0; i < MOST_RUNS && (run = next_newest(svc, owner, run)); i++)
        write_run(run, &w);
    pthread_mutex_unlock(&svc->lock);
    tkc_jsonw_end(&w);
    return !tkc_failed(err);
}
