/* cuda_tables.c - from the description of a batch to the tables that kernels read.
 *
 * Pure arithmetic on the host, tested without a card. The entries of a row or a datum never depend on what else is in the
 * batch: steps and spans begin at the datum's first row.
 */
#include "cuda/cuda_state.h"

#include <assert.h>

enum { FEW = 256, FEW_STEP = 16, MANY_STEP = 256 };

int32_t tcu_pad_rows(int64_t n)
{
    for (int32_t few = 1; few < FEW_STEP; few *= 2)
        if (n <= few)
            return few;
    int64_t step = n <= FEW ? FEW_STEP : MANY_STEP;
    return (int32_t)((n + step - 1) / step * step);
}

size_t tcu_widest_group(const tcu_model *m)
{
    int32_t inner = m->dense ? 2 * m->inner : 0,
            widest = m->qkv_width > inner ? m->qkv_width : inner;
    return (size_t)(m->hidden > widest ? m->hidden : widest);
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t smaller(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

size_t tcu_fill_tiles(const tke_segment *s, size_t n, int32_t begin, int32_t end, int32_t tile_rows,
                      tcu_tile *out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t last = smaller((int32_t)s[i].end, end);
        for (int32_t row = larger((int32_t)s[i].begin, begin); row < last;
             row += tile_rows, count++)
            if (out)
                out[count] = (tcu_tile){ (int32_t)i, row, smaller(tile_rows, last - row) };
    }
    return count;
}

size_t tcu_count_steps(const int64_t *starts, size_t n_seqs)
{
    size_t n = 0;
    for (size_t i = 0; i < n_seqs; i++)
        n += (size_t)((starts[i + 1] - starts[i] + TCU_STEP_ROWS - 1) / TCU_STEP_ROWS);
    return n;
}

void tcu_fill_steps(const int64_t *starts, size_t n_seqs, tcu_step *out)
{
    for (size_t i = 0; i < n_seqs; i++)
        for (int64_t row = starts[i]; row < starts[i + 1]; row += TCU_STEP_ROWS)
            *out++ =
                (tcu_step){ (int32_t)row, smaller(TCU_STEP_ROWS, (int32_t)(starts[i + 1] - row)) };
}

/* The steps of rows [begin, end). Segments begin and end between steps, so no step is split. */
static void find_steps(const tcu_step *steps, size_t n, int32_t begin, int32_t end,
                       tcu_segment *out)
{
    size_t first = 0, last;
    while (first < n && steps[first].row < begin)
        first++;
    for (last = first; last < n && steps[last].row < end; last++)
        assert(steps[last].row + steps[last].n <= end);
    out->first_step = (int32_t)first;
    out->n_steps = (int32_t)(last - first);
}

void tcu_fill_segments(const tke_segment *s, size_t n, const tcu_step *steps, size_t n_steps,
                       int32_t begin, int32_t end, tcu_segment *out)
{
    for (size_t i = 0; i < n; i++) {
        const tcu_block *w = s[i].lora ? (const tcu_block *)s[i].lora->weights : NULL;
        const tcu_block *grads = (const tcu_block *)s[i].grads;
        out[i] = (tcu_segment){ .begin = (int32_t)s[i].begin, .end = (int32_t)s[i].end };
        if (steps)
            find_steps(steps, n_steps, larger(out[i].begin, begin), smaller(out[i].end, end),
                       &out[i]);
        if (!w)
            continue;
        out[i].scale = s[i].lora->scale;
        out[i].rank = w->rank;
        out[i].padded = w->padded;
        out[i].groups = w->groups;
        out[i].operands = w->operands;
        out[i].grads = grads ? grads->data : NULL;
    }
}

bool tcu_hold_segments(const tke_segment *s, size_t n, tinkc_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (s[i].lora && (!tcu_block_use((const tcu_block *)s[i].lora->weights, err) ||
                          (s[i].grads && !tcu_block_use((const tcu_block *)s[i].grads, err))))
            return false;
    return true;
}

bool tcu_ready_segments(const tke_segment *s, size_t n, int32_t *most, bool *head, tinkc_error *err)
{
    *most = 0;
    *head = false;
    if (!tcu_hold_segments(s, n, err)) /* all of them, before the operands of one take memory */
        return false;
    for (size_t i = 0; i < n; i++) {
        tcu_block *w = s[i].lora ? (tcu_block *)(uintptr_t)s[i].lora->weights : NULL;
        if (!w)
            continue;
        if (!tcu_block_ready(w, s[i].lora->layout, err))
            return false;
        *most = larger(*most, w->padded);
        *head = *head || w->has_head;
    }
    return true;
}

int64_t tcu_pad_vocab(const tcu_model *m)
{
    return (m->vocab + 15) / 16 * 16;
}

tcu_lora tcu_lora_of(const tcu_model *m, size_t layer, int of, int32_t most)
{
    tcu_lora p = { .most = most, .n = 1, .in = m->hidden };
    int32_t inner =
        of != TCU_HEAD && m->layers[layer].sparse ? m->experts.width : m->inner; /* of pairs */
    p.group = of == TCU_HEAD ? m->head_group : m->layers[layer].group[of];
    if (of == TCU_HEAD) {
        p.out[0] = m->vocab;
    } else if (of == TCU_QKV) {
        p.n = 3;
        p.out[0] = m->q_width;
        p.out[1] = p.out[2] = m->k_width;
    } else if (of == TCU_O) {
        p.in = m->q_width;
        p.out[0] = m->hidden;
    } else if (of == TCU_GATE_UP) {
        p.n = 2;
        p.out[0] = p.out[1] = inner;
    } else {
        p.in = inner;
        p.out[0] = m->hidden;
    }
    for (int i = 0; i < p.n; i++)
        p.ld_out += p.out[i];
    p.ld_low = p.n * most;
    return p;
}
