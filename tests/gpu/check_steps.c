/* check_steps.c - see check_steps.h. */
#include "check_steps.h"

#include <stdlib.h>
#include <string.h>

static void losses(void *user, size_t first, size_t n, const float *lp, float *g)
{
    run *r = user;
    r->calls++;
    for (size_t i = 0; i < n; i++) {
        r->lp[first + i] = lp[i];
        if (g)
            g[i] = -r->weights[first + i];
    }
}

data make_data(const int *lengths, size_t n_seqs, size_t vocab, uint64_t seed)
{
    data d = { .n_seqs = n_seqs };
    for (size_t s = 0; s < n_seqs; s++) {
        d.starts[s] = (int64_t)d.n;
        d.n += (size_t)lengths[s];
    }
    d.starts[n_seqs] = (int64_t)d.n;
    d.ids = malloc(d.n * 4), d.positions = malloc(d.n * 4), d.targets = malloc(d.n * 4),
    d.weights = malloc(d.n * 4);
    float *f = malloc(d.n * 4);
    random_floats(f, d.n, seed, 1);
    for (size_t i = 0, s = 0; i < d.n; i++) {
        while ((int64_t)i >= d.starts[s + 1])
            s++;
        d.ids[i] = (int32_t)((f[i] * 0.5f + 0.5f) * (float)(vocab - 1));
        d.positions[i] = (int32_t)((int64_t)i - d.starts[s]);
        d.weights[i] = i % 5 == 0 ? 0 : 1 + 0.5f * f[i];
    }
    for (size_t i = 0; i < d.n; i++)
        d.targets[i] = d.ids[(i * 7 + 3) % d.n];
    for (size_t s = 0; s < n_seqs; s++)
        for (int64_t i = d.starts[s]; i + 1 < d.starts[s + 1]; i++)
            d.targets[i] = d.ids[i + 1];
    free(f);
    return d;
}

tke_microbatch batch_of(const data *d, const tke_segment *segments, size_t n_segments, size_t rank,
                        int32_t depth, run *r)
{
    return (tke_microbatch){ .size = { .n = d->n, .max_rank = rank, .max_k = 1, .depth = depth },
                             .ids = d->ids,
                             .positions = d->positions,
                             .starts = d->starts,
                             .n_seqs = d->n_seqs,
                             .segments = segments,
                             .n_segments = n_segments,
                             .attn = true,
                             .targets = d->targets,
                             .losses = losses,
                             .user = r };
}

/* Where the sequence's state is, if the model has one. */
int32_t slot_of(tcu_sampler *s, size_t seq)
{
    return tcu_sampler_cache(s)->n_states ? (int32_t)seq : -1;
}

size_t count_bits(const float *a, const float *b, size_t n)
{
    size_t off = 0;
    for (size_t i = 0; i < n; i++)
        off += memcmp(&a[i], &b[i], 4) != 0;
    return off;
}

/* A step of pure decoding: one row, one wanted row and one draw of each of n sequences. */
tke_step decoding(size_t n, const int32_t *ids, const int32_t *positions,
                  const tke_segment *segment, const tke_step_seq *seqs, const size_t *wants,
                  const tke_draw *draws)
{
    return (tke_step){ .n = n,
                       .ids = ids,
                       .positions = positions,
                       .segments = segment,
                       .n_segments = 1,
                       .seqs = seqs,
                       .n_seqs = n,
                       .wants = wants,
                       .n_wants = n,
                       .draws = draws,
                       .n_draws = n };
}

/* A sampler whose cache has all its memory. */
tcu_sampler *full_sampler(tcu_model *m, const tke_device_sampler_options *o)
{
    tcu_sampler *s = tcu_sampler_new(m, o, &fault);
    const tke_device_cache *c = s ? tcu_sampler_cache(s) : NULL;
    for (size_t first = 0; c && c->slab_blocks && first < c->n_blocks; first += c->slab_blocks)
        if (!tcu_sampler_commit(s, first / c->slab_blocks, &fault))
            return NULL;
    return s;
}

/* An adapter with random numbers. */
tke_lora random_lora(const world *w, size_t rank, uint32_t train, uint64_t seed)
{
    tke_lora_layout *l = layout_new(w, rank, train);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, seed, 0.2f);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &fault);
    CK(weights && tcu_block_write(weights, theta, &fault));
    free(theta);
    return (tke_lora){ l, (tke_block *)weights, 0.75f };
}
