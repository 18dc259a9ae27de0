/* golden_check.h - what the parts of golden_check share. */
#ifndef GOLDEN_CHECK_H
#define GOLDEN_CHECK_H

#include "base/json_read.h"
#include "base/str.h"
#include "cpu/sampling.h"
#include "infer/infer.h"
#include "model/philox.h"
#include "tests/support/engine/on_device.h"
#include "train/training.h"

extern int n_off;
void report(const char *where, const char *name, double error, double tolerance);
void die(const tinkc_error *err);

void check_family(const char *folder, const char *name, tke_device *device);
void check_prompts(const char *file, const char *model, const char *name, tke_device *device, bool bf16);
void check_sampling(const char *file, const char *name);

#endif
