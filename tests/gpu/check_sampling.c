/* check_sampling.c - draws: which ids the rules keep, how often each comes, masks. */
#include "check_card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float *sorting;

static int by_logit(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sorting[x] != sorting[y])
        return sorting[x] > sorting[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The ids that the rules keep: the constraint, temperature, then top-k, then top-p, ties to the lower id. */
static size_t keep(const float *z, size_t v, const tcu_draw *d, const uint32_t *allowed,
                   double *mass, bool *kept)
{
    int32_t *order = malloc(v * sizeof *order);
    double top = -1e300, sum = 0, passed = 0;
    size_t n = 0, m = 0;
    for (size_t i = 0; i < v; i++) {
        if (!allowed || allowed[i / 32] >> i % 32 & 1)
            order[m++] = (int32_t)i;
        kept[i] = false;
        top = z[i] > top ? z[i] : top;
    }
    for (size_t i = 0; i < v; i++)
        mass[i] = exp(((double)z[i] - top) / d->temperature);
    sorting = z;
    qsort(order, m, sizeof *order, by_logit);
    size_t k = d->top_k > 0 && (size_t)d->top_k < m ? (size_t)d->top_k : m;
    for (size_t i = 0; i < k; i++)
        sum += mass[order[i]];
    for (; n < k && (n == 0 || d->top_p >= 1 || passed < d->top_p * sum); n++) {
        passed += mass[order[n]];
        kept[order[n]] = true;
    }
    free(order);
    return n;
}

/* Masks of the draws of check_sampling by i % 8: 0 one token, 1 the least likely tenth, 2 one in seven; else none. */
static void fill_mask(const float *z, size_t v, size_t i, uint32_t *mask)
{
    float limit = -4.8f; /* logits lie between -6 and 6 */
    memset(mask, 0, (v + 31) / 32 * sizeof *mask);
    for (size_t t = 0; t < v; t++)
        if (i % 8 == 0 ? t == (i * 613 + 4999) % v : i % 8 == 1 ? z[t] < limit : t % 7 == i / 8 % 7)
            mask[t / 32] |= UINT32_C(1) << t % 32;
}

void check_sampling(void)
{
    enum { V = 5003, ROWS = 64, LD = 5008, WORDS = (V + 31) / 32 };
    static const struct {
        double temperature, top_p;
        int64_t top_k;
    } rules[] = { { 1, 1, 0 },      { 0.7, 1, 0 },  { 1, 1, 5 }, { 1, 0.9, 0 },
                  { 1.3, 0.5, 40 }, { 1, 0.01, 0 }, { 2, 1, 1 }, { 0.1, 0.95, 1000 } };
    float *z = malloc(ROWS * LD * sizeof *z), *max = card(ROWS * 4), *sum = card(ROWS * 4);
    double *mass = malloc(V * sizeof *mass);
    bool *kept = malloc(V);
    random_floats(z, ROWS * LD, 8, 6);
    for (size_t i = 0; i < ROWS * LD; i++)
        z[i] = roundf(z[i] * 8) / 8; /* many ties */
    float *zc = to_card(z, ROWS * LD * sizeof *z);
    uint32_t *masks = calloc(ROWS * 8 * WORDS, sizeof *masks);
    for (size_t i = 0; i < ROWS * 8; i++)
        fill_mask(z + i % ROWS * LD, V, i, masks + i * WORDS);
    uint32_t *mc = to_card(masks, ROWS * 8 * WORDS * sizeof *masks);
    uint64_t *parts = card(TCU_DRAW_GROUP * TCU_DRAW_SLOTS * sizeof *parts);
    float *sums = card(TCU_DECODE_ROWS * 2048 * sizeof *sums);
    uint32_t none[TCU_DECODE_ROWS + 1] = { 0 }, *turns = card(sizeof none); /* and a mark */
    CK(tcu_upload(device, turns, none, sizeof none, &fault));
    RC(tcu_log_sum(zc, LD, ROWS, V, max, sum, NULL, device->stream));
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        tcu_draw draws[ROWS * 8];
        tcu_drawn drawn[ROWS * 8], masked[ROWS * 8];
        size_t outside = 0, off = 0, bad = 0, changed = 0;
        double chi = 0;
        for (size_t i = 0; i < ROWS * 8; i++)
            draws[i] = (tcu_draw){ .want = (int32_t)(i % ROWS),
                                   .seed = 42,
                                   .sample = (uint32_t)i,
                                   .position = 3,
                                   .temperature = rules[r].temperature,
                                   .top_p = rules[r].top_p,
                                   .top_k = rules[r].top_k };
        tcu_draw *dc = to_card(draws, sizeof draws);
        tcu_drawn *oc = card(sizeof drawn);
        RC(tcu_sample(zc, LD, V, max, sum, dc, ROWS * 8, parts, oc, device->stream));
        CK(tcu_download(device, drawn, oc, sizeof drawn, &fault));
        for (size_t i = 0; i < ROWS * 8; i++) {
            const float *row = z + i % ROWS * LD;
            keep(row, V, &draws[i], NULL, mass, kept);
            double all = 0, total = 0, passed = 0;
            for (size_t j = 0; j < V; j++) {
                total += mass[j];
                all += kept[j] ? mass[j] : 0;
            }
            for (int32_t j = 0; j < drawn[i].token; j++)
                passed += kept[j] ? mass[j] : 0;
            outside += drawn[i].token < 0 || drawn[i].token >= V || !kept[drawn[i].token];
            bad += drawn[i].token < 0;
            chi += (passed + mass[drawn[i].token] / 2) / all / (ROWS * 8);
            off += !(fabs(log(mass[drawn[i].token] / total) - drawn[i].logprob) < 1e-4);
        }
        char name[96];
        snprintf(name, sizeof name, "sampling T %g top_p %g top_k %lld: outside, log-probs off",
                 rules[r].temperature, rules[r].top_p, (long long)rules[r].top_k);
        verdict(outside + off + bad == 0, name, (double)(outside + off + bad));
        if (rules[r].top_k != 1 && rules[r].top_p > 0.1)
            verdict(chi > 0.4 && chi < 0.6, "  where draws fall, mean of the uniform", chi);
        for (size_t i = 0; i < ROWS * 8; i++)
            draws[i].allowed = i % 8 < 3 ? mc + i * WORDS : NULL;
        CK(tcu_upload(device, dc, draws, sizeof draws, &fault));
        RC(tcu_sample(zc, LD, V, max, sum, dc, ROWS * 8, parts, oc, device->stream));
        CK(tcu_download(device, masked, oc, sizeof masked, &fault));
        outside = off = 0;
        for (size_t i = 0; i < ROWS * 8; i++) {
            if (!draws[i].allowed) {
                changed += memcmp(&masked[i], &drawn[i], sizeof *drawn) != 0;
                continue;
            }
            double total = 0;
            keep(z + i % ROWS * LD, V, &draws[i], masks + i * WORDS, mass, kept);
            for (size_t j = 0; j < V; j++)
                total += mass[j];
            outside += masked[i].token < 0 || !kept[masked[i].token];
            off += !(fabs(log(mass[masked[i].token] / total) - masked[i].logprob) < 1e-4);
        }
        verdict(outside + off == 0, "  constrained: outside, log-probs off",
                (double)(outside + off));
        verdict(changed == 0, "  bits: rows beside constrained ones", (double)changed);
        for (size_t i = 0; i < ROWS; i += TCU_DECODE_ROWS)
            RC(tcu_sum_and_draw(zc + i * LD, LD, V, max + i, 1, dc + i, TCU_DECODE_ROWS, sums,
                                parts, turns, turns + TCU_DECODE_ROWS, oc + i, device->stream));
        CK(tcu_download(device, drawn, oc, ROWS * sizeof *drawn, &fault));
        verdict(memcmp(drawn, masked, ROWS * sizeof *drawn) == 0,
                "  bits: sums and draws in one launch", 0);
    }
}
