/* check_card.c - see check_card.h. */
#include "check_card.h"

#include <stdio.h>
#include <stdlib.h>

tcu_device *device;
tinkc_error fault;
int failures;

_Noreturn void die(const char *what)
{
    printf("FAILED %s: %s\n", what, fault.message);
    exit(2);
}

void verdict(bool ok, const char *what, double value)
{
    printf("%s %-58s %.3g\n", ok ? "ok  " : "FAIL", what, value);
    failures += !ok;
}

void *card(size_t bytes)
{
    void *p = tcu_take(device, bytes, TCU_FOR_OTHER, &fault);
    CK(p);
    return p;
}

/* In the order of the kernels: the stream does not wait for the one that plain calls use. */
void poison(void *p, size_t bytes)
{
    RC(cudaMemsetAsync(p, 0xee, bytes, device->stream));
}

void drop(void *p)
{
    tcu_give(device, p, 0, TCU_FOR_OTHER);
}

void *to_card(const void *from, size_t bytes)
{
    void *p = card(bytes);
    CK(tcu_upload(device, p, from, bytes, &fault));
    CK(tcu_wait(device, &fault));
    return p;
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

double median_us(timed_fn *f, void *arg, int per, int runs)
{
    float times[64];
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    int turn = 0;
    for (int r = -1; r < runs; r++) {
        cudaEventRecord(a, device->stream);
        for (int i = 0; i < per; i++)
            f(arg, turn++);
        cudaEventRecord(b, device->stream);
        cudaEventSynchronize(b);
        if (r >= 0)
            cudaEventElapsedTime(&times[r], a, b);
    }
    qsort(times, (size_t)runs, sizeof *times, by_size);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return 1e3 * times[runs / 2] / per;
}

uint64_t differing(bool wide, const void *a, const void *b, int64_t n)
{
    uint64_t *count;
    cudaMallocHost((void **)&count, 8);
    *count = 0;
    RC(tcu_differ(wide, a, b, n, count, device->stream));
    CK(tcu_wait(device, &fault));
    uint64_t r = *count;
    cudaFreeHost(count);
    return r;
}
