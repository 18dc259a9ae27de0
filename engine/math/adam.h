/* adam.h - the numbers of one AdamW step: what kernels and devices are given. */
#ifndef TKE_TENSOR_ADAM_H
#define TKE_TENSOR_ADAM_H

#include <stdint.h>

typedef struct tke_adam {
    double lr, beta1, beta2, eps, weight_decay;
    double clip; /* g is multiplied by it first; 1 = no clipping */
    int64_t t;   /* number of this step, from 1 */
} tke_adam;

#endif
