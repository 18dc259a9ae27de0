/* check_products.c - products of bf16 matrices, the library's and ours: the same bits, and how long they take. */
#include "check_card.h"

#include <math.h>
#include <stdio.h>

typedef struct product_case {
    tcu_product q;
    size_t copies;
    enum { LIBRARY, SMALL, FEW } how;
} product_case;

static void run_product(void *arg, int turn)
{
    product_case *c = arg;
    tcu_product q = c->q;
    q.w += (size_t)turn % c->copies * (size_t)q.n * (size_t)q.k;
    if (c->how == FEW)
        RC(tcu_few(q.wide, q.x, q.w, q.y, q.ldy, q.m, q.n, q.k, NULL, NULL, NULL, NULL,
                   device->stream));
    else if (c->how == SMALL)
        RC(tcu_small(q.wide, q.x, q.w, q.y, q.ldy, q.m, q.n, q.k, NULL, NULL, device->stream));
    else
        CK(tcu_multiply(device, &q, &fault));
}

/* Dense rows, all of them valid. */
static tcu_product product_of(int n, int k, int m, bool transposed, const tcu_bf16 *x,
                              const tcu_bf16 *w, void *y)
{
    return (tcu_product){ .transposed = transposed,
                          .x = x,
                          .w = w,
                          .y = y,
                          .ldx = k,
                          .ldy = n,
                          .m = m,
                          .n = n,
                          .k = k,
                          .valid = m };
}

/* Multiplies in one way, counts what differs from y, and returns the time; 0 if that way does not exist. */
static double one_way(product_case *c, int how, bool there, const void *y, void *z, uint64_t *off)
{
    const tcu_product *q = &c->q;
    *off = 0;
    c->how = how;
    if (!there)
        return 0;
    cudaMemsetAsync(z, 0xee, (size_t)q->m * (size_t)q->n * (q->wide ? 4 : 2), device->stream);
    run_product(c, 0);
    *off = differing(q->wide, y, z, (int64_t)q->m * q->n);
    failures += *off != 0;
    return median_us(run_product, c, how != LIBRARY ? 20 : q->m > 4096 ? 3 : 10, how == LIBRARY ? 5 : 7);
}

static void one_product(int n, int k, int m, bool transposed, bool wide, size_t copies,
                        const tcu_bf16 *x, const tcu_bf16 *w, void *y, void *z)
{
    char name[128];
    product_case c = { .q = product_of(n, k, m, transposed, x, w, z), .copies = copies };
    c.q.wide = wide;
    double floor_us = fmax(2.0 * n * k / 4.3e6, 2.0 * m * n * k / 790e6);
    bool few = m <= TCU_SMALL_ROWS && !transposed;
    uint64_t off[3];
    double small = one_way(&c, SMALL, few, y, z, &off[0]),
           groups = one_way(&c, FEW, few && m > 16 && device->gemm.few_here, y, z, &off[1]);
    size_t before = device->gemm.fallbacks;
    double lib = one_way(&c, LIBRARY, true, y, z, &off[2]);
    snprintf(name, sizeof name, "%s %s N %6d K %6d M %6d", transposed ? "NN" : "NT",
             wide ? "fp32" : "bf16", n, k, m);
    printf("%s small %8.1f us (%llu differ)  by groups %8.1f us (%llu differ)  chosen %8.1f us "
           "(%llu differ%s)  floor %8.1f us  share %.2f\n",
           name, small, (unsigned long long)off[0], groups, (unsigned long long)off[1], lib,
           (unsigned long long)off[2], device->gemm.fallbacks > before ? ", FALLBACK" : "",
           floor_us, floor_us / lib);
}

/* y = bf16(c + bf16(x w)), c random: the library against our kernel. */
static void added_product(int n, int k, int m, bool transposed, const tcu_bf16 *x,
                          const tcu_bf16 *w, void *y, void *z)
{
    size_t bytes = (size_t)m * (size_t)n * sizeof(tcu_bf16);
    tcu_product q = product_of(n, k, m, transposed, x, w, z);
    size_t before = device->gemm.fallbacks;
    q.add = true;
    CK(tcu_plan_product(device, &q, &fault));
    RC(cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, device->stream));
    RC(cudaMemcpyAsync(z, x, bytes, cudaMemcpyDeviceToDevice, device->stream));
    RC(tcu_chain(transposed, false, true, x, k, w, transposed ? n : k, y, n, m, n, k,
                 device->stream));
    CK(tcu_multiply(device, &q, &fault));
    uint64_t off = differing(false, y, z, (int64_t)m * n);
    failures += off != 0;
    printf("%s added to y N %6d K %6d M %6d (%llu differ%s)\n", transposed ? "NN" : "NT", n, k, m,
           (unsigned long long)off, device->gemm.fallbacks > before ? ", FALLBACK" : "");
}

void check_products(void)
{
    static const int shapes[][2] = { { 4096, 1024 },  { 1024, 3072 },  { 6144, 1024 }, { 6144, 4096 }, { 4096, 4096 },
                                     { 24576, 4096 }, { 4096, 12288 }, { 2560, 9728 }, { 19456, 2560 } };
    static const int rows[] = { 1, 8, 17, 64, 128, 256, 2048, 16384 };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int n = shapes[s][0], k = shapes[s][1];
        size_t one = (size_t)n * (size_t)k, copies = (size_t)200e6 / (one * 2) + 1;
        tcu_bf16 *x = card((size_t)16384 * (size_t)(k > n ? k : n) * 2),
                 *w = card(one * copies * 2);
        void *y = card((size_t)16384 * (size_t)(k > n ? k : n) * 4),
             *z = card((size_t)16384 * (size_t)(k > n ? k : n) * 4);
        RC(tcu_random(x, 16384ll * (k > n ? k : n), 1, 1, device->stream));
        for (size_t c = 0; c < copies; c++)
            RC(tcu_random(w + c * one, (int64_t)one, 2, .05f, device->stream));
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            RC(tcu_chain(false, false, false, x, k, w, k, y, n, rows[r], n, k, device->stream));
            one_product(n, k, rows[r], false, false, copies, x, w, y, z);
        }
        for (size_t r = 3; r < sizeof rows / sizeof *rows; r++)
            added_product(n, k, rows[r], false, x, w, y, z);
        added_product(k, n, 16384, true, x, w, y, z);
        RC(tcu_chain(true, false, false, x, n, w, k, y, k, 2048, k, n, device->stream));
        one_product(k, n, 2048, true, false, copies, x, w, y, z);
        for (int m = 8; m <= 64; m += 56) {
            RC(tcu_chain(false, true, false, x, k, w, k, y, n, m, n, k, device->stream));
            one_product(n, k, m, false, true, copies, x, w, y, z);
        }
        drop(x), drop(w), drop(y), drop(z);
    }
    printf("products: %zu choices checked, %zu fallbacks\n", device->gemm.checked,
           device->gemm.fallbacks);
}
