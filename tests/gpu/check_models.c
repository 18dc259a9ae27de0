/* check_models.c - whole models: a step against double precision; trained, sampled, split and in company against themselves. */
#include "check_steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* Log-probs of the rows of sequence `seq` by the sampler: prompts in chunks of `chunk` (0 = whole), bits in lp. */
static void sample_rows(tcu_sampler *s, const data *d, size_t seq, size_t chunk,
                        const tke_lora *lora, const int32_t *blocks, float *lp)
{
    size_t length = (size_t)(d->starts[seq + 1] - d->starts[seq]), row = (size_t)d->starts[seq];
    for (size_t at = 0; at < length;) {
        size_t n = !chunk || length - at < chunk ? length - at : chunk;
        tke_segment segment = { .begin = 0, .end = n, .lora = lora };
        tke_step_seq q = { 0, n, at, blocks, slot_of(s, seq) };
        size_t *wants = malloc(n * sizeof *wants);
        tke_score *scores = malloc(n * sizeof *scores);
        for (size_t i = 0; i < n; i++) {
            wants[i] = i;
            scores[i] = (tke_score){ i, d->targets[row + at + i], &lp[row + at + i] };
        }
        tke_step j = { .n = n,
                       .ids = d->ids + row + at,
                       .positions = d->positions + row + at,
                       .segments = &segment,
                       .n_segments = 1,
                       .seqs = &q,
                       .n_seqs = 1,
                       .wants = wants,
                       .n_wants = n,
                       .scores = scores,
                       .n_scores = n };
        CK(tcu_sampler_run(s, &j, &fault));
        at += n;
        free(wants), free(scores);
    }
}

/* Copies the state of a slot, if there are any. */
static void keep_state(tcu_sampler *s, size_t to, size_t from)
{
    CK(slot_of(s, 0) < 0 || tcu_sampler_copy_state(s, (int32_t)to, (int32_t)from, &fault));
}

/* All sequences decode together, one token each a step, with graphs; greedy draws are thrown away. */
static void decode_rows(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                        float *lp)
{
    size_t longest = 0;
    for (size_t i = 0; i < d->n_seqs; i++)
        longest = d->starts[i + 1] - d->starts[i] > (int64_t)longest
                      ? (size_t)(d->starts[i + 1] - d->starts[i])
                      : longest;
    tke_sample_rule greedy = { .top_p = 1 };
    for (size_t pos = 0; pos < longest; pos++) {
        int32_t ids[64], positions[64], tokens[64];
        float ignored[64];
        bool bad[64];
        size_t wants[64], n = 0;
        tke_step_seq seqs[64];
        tke_draw draws[64];
        tke_score scores[64];
        for (size_t i = 0; i < d->n_seqs; i++) {
            if ((int64_t)pos >= d->starts[i + 1] - d->starts[i])
                continue;
            size_t row = (size_t)d->starts[i] + pos;
            ids[n] = d->ids[row], positions[n] = (int32_t)pos, wants[n] = n;
            seqs[n] = (tke_step_seq){ n, 1, pos, blocks[i], slot_of(s, i) };
            keep_state(s, i + 8, i);
            draws[n] =
                (tke_draw){ n, &greedy, 1, 0, 0, &tokens[n], &ignored[n], &bad[n], NULL, NULL, 0 };
            scores[n] = (tke_score){ n, d->targets[row], &lp[row] };
            n++;
        }
        tke_segment segment = { .begin = 0, .end = n, .lora = lora };
        tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
        CK(tcu_sampler_run(s, &j, &fault)); /* as a graph */
        for (size_t i = 0; i < n; i++)
            if (seqs[i].state >= 0)
                keep_state(s, (size_t)seqs[i].state, (size_t)seqs[i].state + 8);
        j.scores = scores, j.n_scores = n;
        CK(tcu_sampler_run(s, &j, &fault)); /* plainly, for the log-probs */
        for (size_t i = 0; i < n; i++)
            if (ids[i] == d->targets[(size_t)d->starts[0]] && bad[i])
                failures++;
    }
}

/* One decoding step of `n` sequences at position 0, drawn at temperature 1 under the masks, each with one bias or none. */
static void draw_step(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                      size_t n, const uint32_t *const *masks, const tke_bias *const *biases,
                      int32_t *tokens, float *lp)
{
    tke_sample_rule rule = { .temperature = 1, .top_p = 0.9 };
    int32_t ids[8], positions[8] = { 0 };
    size_t wants[8];
    bool bad[8];
    tke_step_seq seqs[8];
    tke_draw draws[8];
    tke_segment segment = { .begin = 0, .end = n, .lora = lora };
    for (size_t i = 0; i < n; i++) {
        ids[i] = d->ids[i], wants[i] = i;
        seqs[i] = (tke_step_seq){ i, 1, 0, blocks[i], slot_of(s, i) };
        draws[i] = (tke_draw){
            i, &rule, 9, 0, 0, &tokens[i], &lp[i], &bad[i], masks[i], biases[i], biases[i] != NULL
        };
    }
    tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
    CK(tcu_sampler_run(s, &j, &fault));
    for (size_t i = 0; i < n; i++)
        failures += bad[i];
}

/* Constraints come and go while one graph is replayed; rows beside them keep their bits. */
static void mask_case(tcu_sampler *s, const data *d, const tke_lora *lora, int32_t (*blocks)[64],
                      size_t vocab)
{
    enum { N = 6, WORDS = 32 };
    const uint32_t *none[N] = { NULL }, *masks[N] = { NULL };
    const tke_bias up = { 3, 1e4f }, *flat[N] = { NULL }, *biases[N] = { NULL, NULL, &up };
    uint32_t one[WORDS] = { 0 }, odd[WORDS];
    int32_t free_tokens[N], tokens[N];
    float free_lp[N], lp[N];
    size_t off = 0, outside = 0;
    one[(vocab - 1) / 32] = UINT32_C(1) << (vocab - 1) % 32;
    memset(odd, 0xaa, sizeof odd);
    masks[1] = one, masks[4] = odd;
    for (int turn = 0; turn < 4; turn++) { /* the second one captures, the others replay */
        draw_step(s, d, lora, blocks, N, none, flat, free_tokens, free_lp);
        draw_step(s, d, lora, blocks, N, masks, biases, tokens, lp);
        outside += tokens[1] != (int32_t)vocab - 1 || tokens[4] % 2 == 0 || tokens[2] != up.token;
        for (size_t i = 0; i < N; i++)
            off += !masks[i] && !biases[i] &&
                   (tokens[i] != free_tokens[i] || memcmp(&lp[i], &free_lp[i], 4));
    }
    verdict(outside == 0, "  constraints and biases: tokens outside them", (double)outside);
    verdict(off == 0, "  bits: rows beside constrained ones", (double)off);
}

/* Sends every block to the host, as a card without memory does. */
static void send_away(void)
{
    tke_residence_turn(&device->residence);
    while (tke_residence_make_room(&device->residence))
        ;
}

/* Which log-probs and which factors differ. */
static void print_difference(const tke_lora_layout *l, const float *a, const float *b,
                             const float *lp, const float *lp2, size_t n)
{
    if (count_bits(lp, lp2, n) + count_bits(a, b, l->n_floats) == 0)
        return;
    printf("  log-probs: %zu\n", count_bits(lp, lp2, n));
    for (size_t i = 0; i < l->n_groups; i++) {
        const tke_lora_group *g = &l->groups[i];
        size_t of_a = g->n * g->n_a * g->rank * g->in;
        printf("  group %zu: A %zu of %zu", i, count_bits(a + g->a, b + g->a, of_a), of_a);
        for (size_t j = 0; j < g->n; j++) {
            size_t of_b = g->n_b * g->out[j] * g->rank;
            printf(", B %zu of %zu", count_bits(a + g->b[j], b + g->b[j], of_b), of_b);
        }
        printf("\n");
    }
}

/* Log-probs and gradients of all rows. */
static void against_double(const world *w, const shape *sh, const tke_lora_layout *l,
                           const float *theta, const float *grads, const data *d, double scale,
                           const float *lp, size_t rank, uint32_t train)
{
    char name[128];
    double *lp_ref = malloc(d->n * 8);
    float *other = malloc(l->n_floats * 4);
    world_loss(w, l, theta, scale, d->ids, d->starts, d->n_seqs, d->targets, d->weights, lp_ref);
    double worst = 0, mean = 0;
    for (size_t i = 0; i < d->n; i++) {
        double off = fabs((double)lp[i] - lp_ref[i]);
        worst = off > worst || isnan(off) ? off : worst;
        mean += off / (double)d->n;
    }
    snprintf(name, sizeof name, "%s rank %zu train %u: log-probs, worst", sh->name, rank, train);
    bool chosen = sh->top < sh->experts; /* near ties fall differently in double: a jump */
    verdict(worst < (chosen ? 20 : sh->oss ? 9e-2 : 6e-2), name, worst);
    verdict(mean < (chosen ? 0.2 : 1.3e-2), "  mean", mean); /* weights larger than a trained model's */
    /* along its own direction, and along a random one */
    double norm = 0, along = 0, rn = 0;
    for (size_t i = 0; i < l->n_floats; i++)
        norm += (double)grads[i] * grads[i];
    norm = sqrt(norm);
    random_floats(other, l->n_floats, 77, 1);
    for (int dir = 0; dir < 2; dir++) {
        double eps = 1e-3, value[2], expect = 0, length = 0;
        for (size_t i = 0; i < l->n_floats; i++) {
            double v = dir ? (grads[i] > 0   ? 1
                              : grads[i] < 0 ? -1
                                             : 0) *
                                 fabs((double)other[i]) / sqrt((double)l->n_floats)
                           : grads[i] / norm;
            expect += v * grads[i];
            length += v * v;
        }
        float *moved = malloc(l->n_floats * 4);
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < l->n_floats; i++) {
                double v = dir ? (grads[i] > 0   ? 1
                                  : grads[i] < 0 ? -1
                                                 : 0) *
                                     fabs((double)other[i]) / sqrt((double)l->n_floats)
                               : grads[i] / norm;
                moved[i] = theta[i] + (float)((side ? -eps : eps) * v);
            }
            value[side] = world_loss(w, l, moved, scale, d->ids, d->starts, d->n_seqs, d->targets,
                                     d->weights, NULL);
        }
        free(moved);
        along = (value[0] - value[1]) / (2 * eps);
        rn = along / expect;
        verdict(chosen || fabs(rn - 1) < 3e-2,
                dir ? "  gradient along another direction / expected"
                    : "  gradient along itself / its norm",
                rn);
        (void)length;
    }
    free(lp_ref), free(other);
}

static void model_case(const shape *sh, size_t rank, uint32_t train)
{
    static const int lengths[] = { 40, 7, 1, 75, 16, 130 };
    char name[128];
    world *w = world_new(sh, true, 5);
    tke_lora_layout *l = layout_new(w, rank, train);
    float *theta = calloc(l->n_floats, 4), *grads = malloc(l->n_floats * 4),
          *other = malloc(l->n_floats * 4);
    for (size_t i = 0; i < l->n_groups; i++) {
        const tke_lora_group *g = &l->groups[i];
        if (g->n)
            random_floats(theta + g->a, g->n_a * g->n * rank * g->in, 100 + i * 3,
                          1 / sqrtf((float)g->in));
        for (size_t j = 0; j < g->n; j++)
            random_floats(theta + g->b[j], g->n_b * g->out[j] * rank, 900 + i * 3 + j, 0.2f);
    }
    data d = make_data(lengths, 6, sh->vocab, 11);
    double scale = 32.0 / (double)rank;
    float *lp = malloc(d.n * 4), *lp2 = malloc(d.n * 4);
    tcu_model *m = tcu_model_new(device, &w->model, &fault);
    CK(m);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &fault),
              *g = tcu_block_new(device, l->n_floats, &fault);
    CK(weights && g && tcu_block_write(weights, theta, &fault));
    tke_lora lora = { l, (tke_block *)weights, (float)scale };
    tke_segment segment = { .begin = 0, .end = d.n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { .memory_bytes = (size_t)8 << 30 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &fault);
    CK(t);
    run r = { d.weights, lp, 0 };
    tke_microbatch b =
        batch_of(&d, &segment, 1, rank,
                 train & ~(uint32_t)TKE_TRAIN_UNEMBED ? TKE_DEPTH_ALL : TKE_DEPTH_HEAD, &r);
    b.attn = train & TKE_TRAIN_ATTN;
    CK(tcu_trainer_run(t, &b, &fault));
    CK(tcu_block_read(g, grads, &fault));
    if (!sh->pattern) /* whose arithmetic in double is the golden sets' */
        against_double(w, sh, l, theta, grads, &d, scale, lp, rank, train);
    /* recomputed, split in two, in company: the same bits */
    o.keep = TKE_KEEP_NONE;
    tcu_trainer *t2 = tcu_trainer_new(m, &o, &fault);
    CK(tcu_block_zero(g, &fault));
    r.lp = lp2;
    CK(tcu_trainer_run(t2, &b, &fault) && tcu_block_read(g, other, &fault));
    snprintf(name, sizeof name, "%s rank %zu train %u, bits: recomputed", sh->name, rank, train);
    verdict(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats) == 0, name, (double)count_bits(grads, other, l->n_floats));
    CK(tcu_block_zero(g, &fault));
    for (int half = 0; half < 2; half++) {
        data part = d;
        size_t s0 = half ? 3 : 0, s1 = half ? 6 : 3, row = (size_t)d.starts[s0];
        part.n_seqs = 3;
        for (size_t i = 0; i <= 3; i++)
            part.starts[i] = d.starts[s0 + i] - d.starts[s0];
        part.n = (size_t)(d.starts[s1] - d.starts[s0]);
        part.ids += row, part.positions += row, part.targets += row, part.weights += row;
        run rp = { part.weights, lp2 + row, 0 };
        tke_segment sp = segment;
        sp.end = part.n;
        tke_microbatch bp = batch_of(&part, &sp, 1, rank, b.size.depth, &rp);
        bp.attn = b.attn;
        CK(tcu_trainer_run(t, &bp, &fault));
    }
    CK(tcu_block_read(g, other, &fault));
    print_difference(l, grads, other, lp, lp2, d.n);
    verdict(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats) == 0,
            "  bits: split in two",
            (double)(count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats)));
    /* trainer = sampler */
    tke_device_sampler_options so = { .cache_bytes = 64 << 20, .max_rows = 512, .max_seqs = 64 };
    tcu_sampler *s = full_sampler(m, &so);
    CK(s);
    int32_t blocks[6][64];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 64; j++)
            blocks[i][j] = (int32_t)((size_t)(i * 64 + j) % tcu_sampler_cache(s)->n_blocks);
    static const size_t chunks[] = { 0, 1, 16, 37 };
    for (int c = 0; c < 4; c++) {
        memset(lp2, 0, d.n * 4);
        for (size_t i = 0; i < 6; i++)
            sample_rows(s, &d, i, chunks[c], &lora, blocks[i], lp2);
        snprintf(name, sizeof name, "  bits: trainer = sampler, chunks of %zu", chunks[c]);
        verdict(count_bits(lp, lp2, d.n) == 0, name, (double)count_bits(lp, lp2, d.n));
    }
    memset(lp2, 0, d.n * 4);
    decode_rows(s, &d, &lora, blocks, lp2);
    verdict(count_bits(lp, lp2, d.n) == 0, "  bits: trainer = sampler, decoding in company",
            (double)count_bits(lp, lp2, d.n));
    mask_case(s, &d, &lora, blocks, sh->vocab);
    /* an adapter that waited on the host */
    CK(tcu_block_zero(g, &fault));
    send_away();
    bool away = weights->host && g->host && !weights->data && !weights->operands;
    CK(tcu_trainer_run(t, &b, &fault));
    send_away();
    CK(tcu_block_read(g, other, &fault));
    size_t off = count_bits(lp, lp2, d.n) + count_bits(grads, other, l->n_floats);
    memset(lp2, 0, d.n * 4);
    for (size_t i = 0; i < 6; i++)
        sample_rows(s, &d, i, 0, &lora, blocks[i], lp2);
    off += count_bits(lp, lp2, d.n);
    verdict(away && off == 0, "  bits: adapter back from the host", (double)off);
    tcu_sampler_free(s), tcu_trainer_free(t), tcu_trainer_free(t2), tcu_block_free(weights),
        tcu_block_free(g), tcu_model_free(m);
}

/* n sequences decode `length` tokens each, in one launch a step or layer by layer: drawn tokens and log-probs. */
static void decode_few(tcu_sampler *s, size_t n, size_t length, size_t vocab, const tke_lora *lora,
                       bool layered, int32_t *tokens, float *lp)
{
    enum { PER = 128 };
    int32_t blocks[TCU_DECODE_ROWS][PER], ids[TCU_DECODE_ROWS], positions[TCU_DECODE_ROWS];
    bool bad[TCU_DECODE_ROWS];
    size_t wants[TCU_DECODE_ROWS];
    tke_sample_rule greedy = { .top_p = 1, .logprobs = true };
    tke_segment segment = { .begin = 0, .end = n, .lora = lora };
    tke_step_seq seqs[TCU_DECODE_ROWS];
    tke_draw draws[TCU_DECODE_ROWS];
    device->layered = layered;
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < PER; b++) /* places of its own for each way */
            blocks[i][b] = (int32_t)((i * PER + b) * 2 + layered);
    for (size_t pos = 0; pos < length; pos++) {
        for (size_t i = 0; i < n; i++) {
            size_t own = pos / (i + 1); /* rows at different positions */
            ids[i] = (int32_t)((own * 31 + i * 7) % vocab);
            positions[i] = (int32_t)own;
            wants[i] = i;
            seqs[i] = (tke_step_seq){ i, 1, own, blocks[i], -1 };
            draws[i] =
                (tke_draw){ i,       &greedy, 1,    0, 0, &tokens[pos * n + i], &lp[pos * n + i],
                            &bad[i], NULL,    NULL, 0 };
        }
        tke_step j = decoding(n, ids, positions, &segment, seqs, wants, draws);
        CK(tcu_sampler_run(s, &j, &fault));
    }
    device->layered = false;
}

/* rank 0: without an adapter */
static void few_case(const shape *sh, size_t length, size_t rank, uint32_t train)
{
    world *w = world_new(sh, true, 9);
    tcu_model *m = tcu_model_new(device, &w->model, &fault);
    tke_lora lora = { 0 };
    if (rank)
        lora = random_lora(w, rank, train, 77);
    tke_device_sampler_options so = { .cache_bytes = (size_t)1 << 30,
                                      .max_rows = 64,
                                      .max_seqs = 64 };
    tcu_sampler *s = m ? full_sampler(m, &so) : NULL;
    CK(s);
    for (size_t n = 1; n <= TCU_DECODE_ROWS; n++) {
        size_t count = n * length, tokens_off = 0;
        int32_t *a = malloc(count * 4), *b = malloc(count * 4);
        float *lp = malloc(count * 4), *lp2 = malloc(count * 4);
        decode_few(s, n, length, sh->vocab, rank ? &lora : NULL, true, a, lp);
        decode_few(s, n, length, sh->vocab, rank ? &lora : NULL, false, b, lp2);
        for (size_t i = 0; i < count; i++)
            tokens_off += a[i] != b[i];
        char name[96];
        size_t first = 0;
        while (first < count && a[first] == b[first] && memcmp(lp + first, lp2 + first, 4) == 0)
            first++;
        if (first < count)
            printf("first difference: step %zu, row %zu: token %d, %a against %d, %a\n", first / n,
                   first % n, b[first], (double)lp2[first], a[first], (double)lp[first]);
        snprintf(name, sizeof name,
                 "  bits: %s rank %zu train %u, %zu rows at once = layer by layer", sh->name, rank,
                 train, n);
        verdict(tokens_off + count_bits(lp, lp2, count) == 0, name,
                (double)(tokens_off + count_bits(lp, lp2, count)));
        free(a), free(b), free(lp), free(lp2);
    }
    tcu_sampler_free(s), tcu_block_free((tcu_block *)(uintptr_t)lora.weights), tcu_model_free(m);
    world_free(w);
}

/* A model's log-probs and gradients, trained and sampled: out[0] of lp is the trainer's. */
typedef struct results {
    float *lp[3], *grads;
} results;

static results run_model(const world *w, const tke_lora_layout *l, const float *theta, const data *d)
{
    static const size_t chunks[] = { 0, 37 };
    results r = { .grads = malloc(l->n_floats * 4) };
    tcu_model *m = tcu_model_new(device, (tke_model *)(uintptr_t)&w->model, &fault);
    tcu_block *weights = tcu_block_new(device, l->n_floats, &fault), *g = tcu_block_new(device, l->n_floats, &fault);
    CK(m && weights && g && tcu_block_write(weights, theta, &fault));
    tke_lora lora = { l, (tke_block *)weights, 0.75f };
    tke_segment segment = { .begin = 0, .end = d->n, .lora = &lora, .grads = (tke_block *)g };
    tke_device_trainer_options o = { .memory_bytes = (size_t)8 << 30 };
    tke_device_sampler_options so = { .cache_bytes = 64 << 20, .max_rows = 512, .max_seqs = 64 };
    tcu_trainer *t = tcu_trainer_new(m, &o, &fault);
    tcu_sampler *s = full_sampler(m, &so);
    int32_t blocks[6][64];
    for (int i = 0; i < 3; i++)
        r.lp[i] = calloc(d->n, 4);
    run turn = { d->weights, r.lp[0], 0 };
    tke_microbatch b = batch_of(d, &segment, 1, l->rank, TKE_DEPTH_ALL, &turn);
    CK(t && s && tcu_trainer_run(t, &b, &fault) && tcu_block_read(g, r.grads, &fault));
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 64; j++)
            blocks[i][j] = (int32_t)((size_t)(i * 64 + j) % tcu_sampler_cache(s)->n_blocks);
    for (int c = 0; c < 2; c++)
        for (size_t i = 0; i < 6; i++)
            sample_rows(s, d, i, chunks[c], &lora, blocks[i], r.lp[1]);
    decode_rows(s, d, &lora, blocks, r.lp[2]);
    tcu_sampler_free(s), tcu_trainer_free(t), tcu_block_free(weights), tcu_block_free(g), tcu_model_free(m);
    return r;
}

/* A model with packed matrices and the bf16 model that it stands for: the same bits. */
static void twin_case(const shape *sh)
{
    static const int lengths[] = { 40, 7, 1, 75, 16, 130 };
    char name[128];
    world *w = world_new(sh, true, 5);
    tke_lora_layout *l = layout_new(w, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    float *theta = malloc(l->n_floats * 4);
    random_floats(theta, l->n_floats, 5, 0.05f);
    data d = make_data(lengths, 6, sh->vocab, 11);
    results here = run_model(w, l, theta, &d);
    world_unpack(w);
    results twin = run_model(w, l, theta, &d);
    snprintf(name, sizeof name, "bits: %s, %s: packed = its unpacked twin", sh->name, sh->format);
    size_t off = count_bits(here.lp[0], twin.lp[0], d.n) + count_bits(here.grads, twin.grads, l->n_floats);
    verdict(off == 0 && isfinite(here.lp[0][5]), name, (double)off);
    off = count_bits(here.lp[0], here.lp[1], d.n) + count_bits(here.lp[0], here.lp[2], d.n);
    verdict(off == 0, "  trainer = sampler, prompts and decoding", (double)off);
}

void check_twins(void)
{
    static const char *const names[] = { "mixed", "Q4_0", "NF4", "Q6_K" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const shape llama = { "llama", 256,   512,   2, 8, 2, 32, 512, 512, i % 2 == 0, true, false,
                              .window = 0, .format = names[i] };
        twin_case(&llama);
    }
}

void check_few(void)
{
    static const shape qwen3 = { "qwen3", 1024, 1536, 3,    16,    8, 128,
                                 2000,    2048, true, true, false, .window = 0 };
    static const shape small = { "narrow heads", 256,  384,   3, 4, 2, 64, 500, 512,
                                 true,           true, false, .window = 0 };
    static const shape qwen2 = {
        "qwen2", 192, 320, 2, 6, 2, 128, 333, 512, true, false, true, .window = 100
    };
    /* gate and up have more pieces in a block than an instruction takes */
    static const shape broad = {
        "broad", 512, 12288, 2, 8, 2, 128, 2000, 512, true, true, false, .window = 0
    };
    /* so many bytes a layer that A is multiplied before the matrix, not beside it */
    static const shape heavy = {
        "heavy", 2048, 6144, 2, 16, 8, 128, 2000, 512, true, true, false, .window = 0
    };
    const uint32_t layers = TKE_TRAIN_ATTN | TKE_TRAIN_MLP;
    few_case(&qwen3, 1200, 0, 0);
    few_case(&small, 200, 0, 0);
    few_case(&qwen2, 300, 0, 0);
    few_case(&qwen3, 300, 32, layers | TKE_TRAIN_UNEMBED);
    few_case(&small, 200, 8, layers);
    few_case(&small, 200, 64, TKE_TRAIN_MLP);
    few_case(&qwen2, 300, 20, TKE_TRAIN_ATTN | TKE_TRAIN_UNEMBED);
    few_case(&broad, 100, 32, layers | TKE_TRAIN_UNEMBED);
    few_case(&heavy, 100, 32, layers | TKE_TRAIN_UNEMBED);
    few_case(&heavy, 100, 64, TKE_TRAIN_MLP);
}

/* Odd sizes: an expert's width is not a multiple of 8, experts are not one of 16. */
void check_experts(void)
{
    static const shape all = {
        "all experts", 96, 20, 2, 4, 2, 32, 300, 512, false, true, .experts = 5, .top = 5
    };
    static const shape some = {
        "experts", 192, 44, 3, 4, 2, 64, 300, 512, true, true, .experts = 21, .top = 3
    };
    static const shape oss = { "gpt-oss", 96,     64,           2,       8,   2,   32,
                               300,       512,    false,        false,   true, 50,
                               .experts = 4, .top = 4, .oss = true };
    static const shape oss_some = { "gpt-oss, some", 96,  64,    1,     8,    2, 64,
                                    300,             512, false, false, true, 50,
                                    .experts = 9, .top = 2, .oss = true };
    model_case(&all, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&oss, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&some, 20, TKE_TRAIN_MLP);
    model_case(&oss_some, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

/* Layers of one part each, with states. */
void check_hybrid(void)
{
    static const shape nemotron = { "nemotron", 64, 40, 7, 4, 2, 16, 300, 512, .experts = 8, .top = 3,
                                    .pattern = "MEM*-EM", .shared = 56, .space_heads = 4,
                                    .space_dim = 16, .state = 24, .groups = 2 };
    static const shape odd = { "nemotron odd", 48, 24, 4, 4, 2, 10, 300, 512, .experts = 8, .top = 2,
                               .pattern = "M*ME", .space_heads = 6, .space_dim = 5, .state = 7,
                               .groups = 2 };
    model_case(&nemotron, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&nemotron, 20, TKE_TRAIN_MLP);
    model_case(&odd, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

/* Parts of Qwen3.5, its experts' and Nemotron's, but for the rules with a state. */
void check_parts(void)
{
    static const shape gated = { "gate, heads of 256, a quarter rotates", 192,  200, 2, 4, 2, 256, 300, 512,
                                 .tied = true, .qk_norm = true, .gate = true, .still = 192 };
    static const shape odd = { "heads of 10, gate", 64, 36, 2, 4, 2, 10, 300, 512, .qk_norm = true,
                               .gate = true, .still = 6 };
    static const shape whole = { "heads of 160", 96, 64, 2, 6, 1, 160, 300, 512, .bias = true, .window = 50 };
    static const shape still = { "no rotation, squared ReLU", 96, 52, 3, 8, 2, 64, 300, 512, .still = 64, .squared = true };
    static const shape shared = { "shared expert with a gate", 96, 20, 2, 4, 2, 32, 300, 512,
                                  .experts = 5, .top = 5, .shared = 28, .shared_gate = true };
    static const shape sigmoids = { "all experts, sigmoids, squared ReLU, shared", 96, 20, 2, 4, 2, 32, 300, 512,
                                    .experts = 8, .top = 8, .squared = true, .shared = 28, .expert_groups = 4, .kept = 4 };
    static const shape grouped = { "sigmoids in groups", 96, 20, 2, 4, 2, 32, 300, 512,
                                   .experts = 24, .top = 3, .squared = true, .shared = 40, .expert_groups = 4, .kept = 2 };
    model_case(&gated, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&odd, 20, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&whole, 20, TKE_TRAIN_ATTN);
    model_case(&still, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&shared, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&sigmoids, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&grouped, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
}

/* Layers of the delta rule and of gated attention. */
void check_qwen(void)
{
    static const shape qwen = { "qwen3.5", 96, 72, 5, 4, 2, 32, 300, 512, .tied = true, .qk_norm = true,
                                .pattern = "DDGDG", .gate = true, .still = 24, .key_heads = 2,
                                .value_heads = 4, .key_dim = 32, .value_dim = 16 };
    static const shape odd = { "qwen3.5 odd", 48, 36, 3, 3, 1, 16, 300, 512, .qk_norm = true,
                               .pattern = "GDD", .gate = true, .still = 12, .key_heads = 2,
                               .value_heads = 4, .key_dim = 8, .value_dim = 10 };
    model_case(&qwen, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&qwen, 20, TKE_TRAIN_MLP);
    model_case(&odd, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
}

void check_model(void)
{
    static const shape qwen3 = { "qwen3", 256, 384, 3, 4, 2, 64, 500, 512, true, true, false, .window = 0 };
    static const shape llama = { "llama", 256, 512, 2, 8, 2, 32, 512, 512, false, false, false, .window = 0 };
    static const shape qwen2 = { "qwen2", 192, 256, 2, 6, 2, 128, 333, 512, true, false, true, .window = 50 };
    model_case(&qwen3, 8, TKE_TRAIN_ATTN | TKE_TRAIN_MLP);
    model_case(&llama, 32, TKE_TRAIN_ATTN | TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    model_case(&qwen2, 20, TKE_TRAIN_MLP | TKE_TRAIN_UNEMBED);
    model_case(&qwen2, 4, TKE_TRAIN_UNEMBED);
    check_few();
}
