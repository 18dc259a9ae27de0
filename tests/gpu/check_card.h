/* check_card.h - what the modes of cuda_check share: the card, memory on it, verdicts, times; and the modes themselves.
 *
 * A mode stands in the file that the list of modes below names; what of the program's state it may touch is here.
 */
#ifndef TKE_CHECK_CARD_H
#define TKE_CHECK_CARD_H

#include "cuda/cuda_codes.h"
#include "gpu_world.h"

extern tcu_device *device;
extern tinkc_error fault;
extern int failures; /* verdicts that were not good: the exit status */

/* Ends the program: nothing can be checked any more. */
_Noreturn void die(const char *what);

#define CK(x)                                                                                      \
    do {                                                                                           \
        if (!(x))                                                                                  \
            die(#x);                                                                               \
    } while (0)
#define RC(x) CK(tcu_ok(device, (x), #x, &fault))

void verdict(bool ok, const char *what, double value);

void *card(size_t bytes);
void poison(void *p, size_t bytes);
void drop(void *);
void *to_card(const void *from, size_t bytes);

/* How many of n numbers differ: fp32 if wide, else bf16. */
uint64_t differing(bool wide, const void *a, const void *b, int64_t n);

/* Median of several runs of f, in microseconds; f is called with 0, 1, 2, ... */
typedef void timed_fn(void *arg, int turn);
double median_us(timed_fn *f, void *arg, int per, int runs);

/* ---- modes ---- */

void check_products(void); /* check_products.c */

void check_attention(void); /* check_attention.c */
void speed_attention(void);

void check_model(void); /* check_models.c: whole models, by what their layers have */
void check_experts(void);
void check_hybrid(void);
void check_parts(void);
void check_qwen(void);
void check_twins(void);
void check_few(void);

void check_sampling(void); /* check_sampling.c */
void check_memory(void);   /* check_memory.c */

void speed_train(const char *name, size_t tokens, const char *how, double gib); /* check_speed.c */
void speed_decode(const char *name, const char *how);
void speed_experts(const char *name);

#endif
