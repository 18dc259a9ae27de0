/* cpu_trainer.c - microbatches on the CPU: their memory, and running one.
 *
 * May touch: its work space, gradient blocks of the microbatch. Must not: know of passes.
 */
#include <assert.h>
#include <string.h>
#include "base/mem.h"
#include "cpu/cpu_device.h"
#include "cpu/microbatch.h"

static const size_t default_memory = (size_t)1 << 30;

struct tke_device_trainer {
    tke_cpu_model *model;
    tke_device_trainer_options o;
    tke_rope_table rope;
    tke_real *block; /* work space, kept between microbatches */
    size_t n_reals;
    tke_real **h_in; /* [n_layers]: for tke_batch */
    tke_real **kept;
};

static size_t n_layers_of(const tke_device_trainer *t)
{
    return t->model->base.model->config.n_layers;
}

tke_device_trainer *tke_cpu_trainer_new(tke_device_model *m, const tke_device_trainer_options *o,
                                        tinkc_error *err)
{
    tke_device_trainer *t = tkc_zalloc(NULL, sizeof *t, err);
    if (!t)
        return NULL;
    t->model = (tke_cpu_model *)m;
    t->o = *o;
    tke_cpu_trainer_set_memory(t, o->memory_bytes);
    t->h_in = tkc_zalloc(NULL, n_layers_of(t) * sizeof *t->h_in, err);
    t->kept = tkc_zalloc(NULL, n_layers_of(t) * sizeof *t->kept, err);
    if (t->h_in && t->kept)
        return t;
    tke_cpu_trainer_free(t);
    return NULL;
}

static void release_block(tke_device_trainer *t)
{
    tkc_release_pages(t->block, t->n_reals * sizeof *t->block);
    t->block = NULL;
    t->n_reals = 0;
}

void tke_cpu_trainer_free(tke_device_trainer *t)
{
    if (!t)
        return;
    release_block(t);
    tke_rope_table_free(&t->rope);
    tkc_release(NULL, t->h_in, n_layers_of(t) * sizeof *t->h_in);
    tkc_release(NULL, t->kept, n_layers_of(t) * sizeof *t->kept);
    tkc_release(NULL, t, sizeof *t);
}

void tke_cpu_trainer_set_memory(tke_device_trainer *t, size_t memory_bytes)
{
    t->o.memory_bytes = memory_bytes ? memory_bytes : default_memory;
    if (t->n_reals * sizeof *t->block > t->o.memory_bytes)
        release_block(t);
}

size_t tke_cpu_trainer_memory(const tke_device_trainer *t)
{
    return t->o.memory_bytes;
}

size_t tke_cpu_trainer_held(const tke_device_trainer *t)
{
    return t->n_reals * sizeof *t->block;
}

static size_t bytes_with(const tke_device_trainer *t, const tke_microbatch_size *size,
                         size_t n_kept)
{
    return tke_batch_reals(t->model->base.model, size, n_kept) * sizeof(tke_real);
}

size_t tke_cpu_microbatch_bytes(const tke_device_trainer *t, const tke_microbatch_size *size,
                                int32_t keep)
{
    bool all = keep == TKE_KEEP_ALL && size->depth == TKE_DEPTH_ALL && t->o.keep != TKE_KEEP_NONE;
    return bytes_with(t, size, all ? n_layers_of(t) : 0);
}

/* How many layers can keep their activations within the budget. */
static size_t layers_to_keep(const tke_device_trainer *t, const tke_microbatch_size *size)
{
    size_t keep = n_layers_of(t);
    if (size->depth != TKE_DEPTH_ALL || t->o.keep == TKE_KEEP_NONE)
        return 0;
    while (t->o.keep != TKE_KEEP_ALL && keep > 0 && bytes_with(t, size, keep) > t->o.memory_bytes)
        keep--;
    return keep;
}

static bool reserve(tke_device_trainer *t, size_t reals, tinkc_error *err)
{
    if (reals <= t->n_reals)
        return true;
    release_block(t);
    t->block = tkc_alloc_pages(reals * sizeof *t->block, err);
    if (t->block)
        t->n_reals = reals;
    return t->block != NULL;
}

static size_t longest_of(const tke_microbatch *job)
{
    int64_t longest = 0;
    for (size_t i = 0; i < job->n_seqs; i++) {
        int64_t n = job->starts[i + 1] - job->starts[i];
        longest = n > longest ? n : longest;
    }
    return (size_t)longest;
}

bool tke_cpu_microbatch_run(tke_device_trainer *t, const tke_microbatch *job, tinkc_error *err)
{
    const tke_model *m = t->model->base.model;
    tke_batch u = { .job = job,
                    .n_kept = layers_to_keep(t, &job->size),
                    .stop = t->o.stop,
                    .h_in = t->h_in,
                    .kept = t->kept };
    if (!reserve(t, tke_batch_reals(m, &job->size, u.n_kept), err) ||
        !tke_rope_table_grow(&t->rope, m, longest_of(job), err))
        return false;
    u.rows = (tke_rows){ .cpu = t->model->cpu,
                         .model = m,
                         .n = job->size.n,
                         .positions = job->positions,
                         .segments = job->segments,
                         .n_segments = job->n_segments,
                         .max_rank = job->size.max_rank,
                         .cos_table = t->rope.cos_table,
                         .sin_table = t->rope.sin_table };
    tke_batch_place(&u, t->block);
    tke_batch_forward(&u);
    if (tke_batch_head(&u) && (job->size.depth != TKE_DEPTH_ALL || tke_batch_backward(&u)))
        return true;
    return tkc_fail(err, TINKC_E_CANCELLED, "the engine is stopping");
}
