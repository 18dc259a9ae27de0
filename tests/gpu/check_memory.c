/* check_memory.c - optimizer states that go to the host and come back: the same numbers as with all the room. */
#include "check_steps.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct optimized { /* numbers under AdamW */
    tcu_block *g, *theta, *m, *v;
} optimized;

static optimized make_optimized(const float *start, size_t n)
{
    optimized o = { tcu_block_new(device, n, &fault), tcu_block_new(device, n, &fault),
                    tcu_block_new(device, n, &fault), tcu_block_new(device, n, &fault) };
    CK(o.g && o.theta && o.m && o.v);
    CK(tcu_block_write(o.theta, start, &fault) && tcu_block_write(o.g, start + 1, &fault));
    return o;
}

static void optimize(const optimized *o, int64_t t)
{
    double moved;
    tke_adam a = { 1e-3, 0.9, 0.999, 1e-8, 0.01, 1, t };
    CK(tcu_block_adam(&a, o->g, o->theta, o->m, o->v, &moved, &fault));
}

static size_t differ_from(const optimized *a, const optimized *b, float *x, float *y, size_t n)
{
    tcu_block *const of[2][3] = { { a->theta, a->m, a->v }, { b->theta, b->m, b->v } };
    size_t off = 0;
    for (int i = 0; i < 3; i++) {
        CK(tcu_block_read(of[0][i], x, &fault) && tcu_block_read(of[1][i], y, &fault));
        off += count_bits(x, y, n);
    }
    return off;
}

static void free_optimized(optimized *o)
{
    tcu_block_free(o->g), tcu_block_free(o->theta), tcu_block_free(o->m), tcu_block_free(o->v);
}

/* Three sets of numbers where only one has room, and a fourth with all the room. */
void check_memory(void)
{
    enum { SETS = 3, STEPS = 3, N = 24 << 20, LEFT = 700 };
    float *start = malloc((N + 1) * 4), *x = malloc(N * 4), *y = malloc(N * 4);
    size_t left, total, off = 0, tries = 0;
    void *ballast = NULL;
    optimized sets[SETS], alone;
    random_floats(start, N + 1, 12, 1);
    CK(tcu_memory(device, &left, &total));
    for (left -= (size_t)LEFT << 20; cudaMalloc(&ballast, left) != cudaSuccess && tries++ < 50;)
        left -= (size_t)64 << 20;
    cudaGetLastError();
    verdict(ballast != NULL, "memory: MiB left on the card", LEFT);
    for (int i = 0; i < SETS; i++)
        sets[i] = make_optimized(start, N);
    for (int t = 1; t <= STEPS; t++)
        for (int i = 0; i < SETS; i++)
            optimize(&sets[i], t);
    size_t away = tke_residence_away(&device->residence);
    verdict(away > 0, "memory: MiB that wait on the host", (double)(away >> 20));
    tinkc_error refused = { 0 };
    tcu_block *large = tcu_block_new(device, (size_t)1 << 30, &refused);
    printf("  refused: %s\n", refused.message);
    verdict(!large && refused.code == TINKC_E_MEMORY && !device->dead,
            "memory: 4 GiB are an error of the request", refused.code);
    cudaFree(ballast);
    alone = make_optimized(start, N);
    for (int t = 1; t <= STEPS; t++)
        optimize(&alone, t);
    for (int i = 0; i < SETS; i++)
        off += differ_from(&sets[i], &alone, x, y, N);
    verdict(off == 0, "memory: bits of numbers that moved", (double)off);
    for (int i = 0; i < SETS; i++)
        free_optimized(&sets[i]);
    free_optimized(&alone);
    verdict(tke_residence_away(&device->residence) == 0 && device->used[TCU_FOR_ADAPTERS] == 0,
            "memory: bytes left behind", (double)device->used[TCU_FOR_ADAPTERS]);
    free(start), free(x), free(y);
}
