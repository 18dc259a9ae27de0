/* check_products.c - products of bf16 matrices, the library's and ours: the same bits, and how long they take. */
#include "check_card.h"

#include <math.h>
#include <stdio.h>

typedef struct product_case {
    tcu_product q;
    size_t copies;
    bool small;
} product_case;

static void run_product(void *arg, int turn)
{
    product_case *c = arg;
    tcu_product q = c->q;
    q.w += (size_t)turn % c->copies * (size_t)q.n * (size_t)q.k;
    if (c->small)
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

static void one_product(int n, int k, int m, bool transposed, bool wide, size_t copies,
                        const tcu_bf16 *x, const tcu_bf16 *w, void *y, void *z)
{
    char name[128];
    product_case c = { .q = product_of(n, k, m, transposed, x, w, z), .copies = copies };
    c.q.wide = wide;
    double floor_us = fmax(2.0 * n * k / 4.3e6, 2.0 * m * n * k / 790e6);
    double small = 0;
    uint64_t off = 0;
    if (m <= TCU_SMALL_ROWS && !transposed) {
        c.small = true;
        cudaMemsetAsync(z, 0xee, (size_t)m * (size_t)n * (wide ? 4 : 2), device->stream);
        run_product(&c, 0);
        off = differing(wide, y, z, (int64_t)m * n);
        failures += off != 0;
        small = median_us(run_product, &c, 20, 7);
        c.small = false;
    }
    size_t before = device->gemm.fallbacks;
    cudaMemsetAsync(z, 0xee, (size_t)m * (size_t)n * (wide ? 4 : 2), device->stream);
    double lib = 0;
    uint64_t off_lib = 0;
    {
        run_product(&c, 0);
        off_lib = differing(wide, y, z, (int64_t)m * n);
        failures += off_lib != 0;
        lib = median_us(run_product, &c, m > 4096 ? 3 : 10, 5);
    }
    snprintf(name, sizeof name, "%s %s N %6d K %6d M %6d", transposed ? "NN" : "NT",
             wide ? "fp32" : "bf16", n, k, m);
    printf("%s small %8.1f us (%llu differ)  library %8.1f us (%llu differ%s)  floor %8.1f us  "
           "share %.2f\n",
           name, small, (unsigned long long)off, lib, (unsigned long long)off_lib,
           device->gemm.fallbacks > before ? ", FALLBACK" : "", floor_us, floor_us / lib);
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
        RC(tcu_chain(false, true, false, x, k, w, k, y, n, 8, n, k, device->stream));
        one_product(n, k, 8, false, true, copies, x, w, y, z);
        drop(x), drop(w), drop(y), drop(z);
    }
    printf("products: %zu choices checked, %zu fallbacks\n", device->gemm.checked,
           device->gemm.fallbacks);
}
