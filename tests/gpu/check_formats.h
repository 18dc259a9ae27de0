/* check_formats.h - the check of packed base weights, a mode of cuda_check. */
#ifndef TKE_CHECK_FORMATS_H
#define TKE_CHECK_FORMATS_H

#include "cuda/cuda_state.h"

/* How many comparisons fail; fast: times of products, too. */
int check_formats(tcu_device *, bool fast);

#endif
