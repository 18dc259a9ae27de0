/* cuda_tables.c - from the description of a batch to the tables that kernels read.
 *
 * Pure arithmetic on the host, tested without a card. The entries of a row or a datum never depend on what else is in the
 * batch: steps and spans begin at the datum's first row.
 */
#include "cuda/cuda_state.h"

#include <assert.h>

#include <string.h>

enum { FEW = 256, FEW_STEP = 16, MANY_STEP = 256, ALIGN = 256 };

void tcu_walk_take(tcu_walk *w, void *out, size_t count, size_t size)
{
    void *p = w->at ? w->at + w->used : NULL;
    memcpy(out, &p, sizeof p);
    w->used += (count * size + ALIGN - 1) / ALIGN * ALIGN;
}

int32_t tcu_pad_rows(int64_t n)
{
    for (int32_t few = 1; few < FEW_STEP; few *= 2)
        if (n <= few)
            return few;
    int64_t step = n <= FEW ? FEW_STEP : MANY_STEP;
    return (int32_t)((n + step - 1) / step * step);
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

bool tcu_ready_segments(const tcu_model *m, const tke_segment *s, size_t n, int32_t *most, bool *head,
                        tinkc_error *err)
{
    *most = 0;
    *head = false;
    if (!tcu_hold_segments(s, n, err)) /* all of them, before the operands of one take memory */
        return false;
    for (size_t i = 0; i < n; i++) {
        tcu_block *w = s[i].lora ? (tcu_block *)(uintptr_t)s[i].lora->weights : NULL;
        if (!w)
            continue;
        if (!tcu_block_ready(w, s[i].lora->layout, m, err))
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

size_t tcu_fill_pieces(tcu_run *runs, size_t n, tcu_piece *out)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        tcu_run *r = &runs[i];
        r->piece = (int32_t)count;
        for (int32_t at = 0, rows; at < r->n; at += rows, count++) {
            int32_t position = r->position + at, left = TCU_PIECE_ROWS - position % TCU_PIECE_ROWS;
            rows = smaller(left, r->n - at);
            if (out)
                out[count] = (tcu_piece){ (int32_t)i, r->row + at, rows, position, -1 };
        }
        r->n_pieces = (int32_t)count - r->piece;
    }
    return count;
}
