/* The host side of the CUDA backend without a card: tables, memory plan, the list of algorithms,
 * error texts. */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include "cuda/cuda_part.h"

static void only_known_algorithms(void **state)
{
    (void)state;
    static const int exact[] = { 66, 41, 42, 21, 23, 24 }, other[] = { 13, 16, 0, 1, 20, 67, -1 };
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        assert_true(tcu_algorithm_exact(exact[i], 0, 0));
        assert_true(tcu_algorithm_exact(exact[i], 1, 0));
        assert_false(tcu_algorithm_exact(exact[i], 2, 0)); /* split-K */
        assert_false(tcu_algorithm_exact(exact[i], 1, 1)); /* a reduction */
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(tcu_algorithm_exact(other[i], 1, 0));
}

static void steps_begin_with_their_datum(void **state)
{
    (void)state;
    const int64_t starts[] = { 0, 5, 37, 53 };
    tcu_step steps[8];
    assert_int_equal(tcu_count_steps(starts, 3), 4);
    tcu_fill_steps(starts, 3, steps);
    static const tcu_step want[] = { { 0, 5 }, { 5, 16 }, { 21, 16 }, { 37, 16 } };
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(steps[i].row, want[i].row);
        assert_int_equal(steps[i].n, want[i].n);
    }
}

static void tiles_stay_in_their_segment(void **state)
{
    (void)state;
    tke_segment segments[] = { { .begin = 0, .end = 70 }, { .begin = 70, .end = 75 }, { .begin = 75, .end = 300 } };
    tcu_tile tiles[16];
    size_t n = tcu_fill_tiles(segments, 3, 64, 200, 64, tiles);
    static const tcu_tile want[] = { { 0, 64, 6 }, { 1, 70, 5 }, { 2, 75, 64 }, { 2, 139, 61 } };
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(tiles[i].segment, want[i].segment);
        assert_int_equal(tiles[i].row, want[i].row);
        assert_int_equal(tiles[i].n, want[i].n);
    }
}

static void segments_know_their_steps(void **state)
{
    (void)state;
    const int64_t starts[] = { 0, 20, 40, 60 };
    tke_segment segments[] = { { .begin = 0, .end = 40 }, { .begin = 40, .end = 60 } };
    tcu_step steps[8];
    tcu_segment out[2];
    tcu_fill_steps(starts, 3, steps);
    tcu_fill_segments(segments, 2, steps, 6, 0, 60, out);
    assert_int_equal(out[0].first_step, 0);
    assert_int_equal(out[0].n_steps, 4);
    assert_int_equal(out[1].first_step, 4);
    assert_int_equal(out[1].n_steps, 2);
    tcu_fill_segments(segments, 2, steps, 6, 20, 56, out); /* a chunk of the head */
    assert_int_equal(out[0].first_step, 2);
    assert_int_equal(out[0].n_steps, 2);
    assert_int_equal(out[1].n_steps, 1);
    assert_int_equal(out[0].rank, 0); /* no adapter */
}

static void rows_are_padded(void **state)
{
    (void)state;
    assert_int_equal(tcu_pad_rows(1), 1);
    assert_int_equal(tcu_pad_rows(3), 4);
    assert_int_equal(tcu_pad_rows(9), 16);
    assert_int_equal(tcu_pad_rows(17), 32);
    assert_int_equal(tcu_pad_rows(256), 256);
    assert_int_equal(tcu_pad_rows(257), 512);
    assert_int_equal(tcu_padded_rank(1), 16);
    assert_int_equal(tcu_padded_rank(32), 32);
    assert_int_equal(tcu_padded_rank(0), 0);
}

static const tke_attn plan_heads = { .n_heads = 16, .n_kv_heads = 8, .head_dim = 128 };
static tcu_layer plan_layer(void)
{
    tcu_layer l = { .mixer = &tcu_part_attention, .feed = &tcu_part_dense };
    l.attn = (tcu_attn){ .d = 128, .q_width = 2048, .k_width = 1024, .of = &plan_heads };
    l.attn.qkv = (tcu_linear){ .group = 4,
                               .adapted = true,
                               .n = 3,
                               .in = 1024,
                               .out = { 2048, 1024, 1024 },
                               .rows = 4096 };
    l.attn.o = (tcu_linear){ .n = 1, .in = 2048, .out = { 1024 }, .rows = 1024 };
    l.dense.in = (tcu_linear){ .n = 2, .in = 1024, .out = { 3072, 3072 }, .rows = 6144 };
    l.dense.out = (tcu_linear){ .n = 1, .in = 3072, .out = { 1024 }, .rows = 1024 };
    l.dense.inner = 3072;
    return l;
}

enum { PLAN_LAYERS = 4 };
static tcu_model plan_model(tcu_layer *layers)
{
    tcu_model m = { .hidden = 1024, .vocab = 4096, .layers = layers };
    m.config.n_layers = PLAN_LAYERS;
    m.config.n_heads = 16;
    m.config.n_kv_heads = 8;
    m.config.head_dim = 128;
    for (size_t i = 0; i < PLAN_LAYERS; i++)
        layers[i] = plan_layer();
    return m;
}

static void memory_plan_grows_with_what_is_kept(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    tcu_layer layers[PLAN_LAYERS];
    tcu_model m = plan_model(layers);
    tke_device_trainer_options o = { .memory_bytes = 1 << 30 };
    tcu_trainer *t = tcu_trainer_new(&m, &o, &err);
    assert_non_null(t);
    tke_microbatch_size s = { .n = 1000, .max_rank = 32, .max_k = 1, .depth = TKE_DEPTH_ALL };
    size_t least = tcu_trainer_bytes(t, &s, TKE_KEEP_NONE),
           all = tcu_trainer_bytes(t, &s, TKE_KEEP_ALL);
    assert_true(least < all);
    s.depth = TKE_DEPTH_NONE;
    assert_true(tcu_trainer_bytes(t, &s, TKE_KEEP_ALL) < least);
    s.n = 2000;
    s.depth = TKE_DEPTH_ALL;
    assert_true(tcu_trainer_bytes(t, &s, TKE_KEEP_NONE) > least);
    assert_int_equal(tcu_trainer_memory(t), 1 << 30);
}

static void groups_have_the_models_sizes(void **state)
{
    (void)state;
    tcu_layer layer = plan_layer();
    tcu_lora qkv = tcu_lora_of(&layer.attn.qkv, 32), bare = tcu_lora_of(&layer.dense.out, 32);
    assert_int_equal(qkv.n, 3);
    assert_int_equal(qkv.ld_out, 4096);
    assert_int_equal(qkv.ld_low, 96);
    assert_int_equal(qkv.group, 4);
    assert_int_equal(qkv.most, 32);
    assert_int_equal(bare.in, 3072);
    assert_int_equal(bare.out[0], 1024);
    assert_int_equal(bare.most, 0); /* a group that is never adapted */
}

static size_t work_of(const tcu_part *part, const tcu_model *m, const tcu_size *size)
{
    tcu_walk w = { 0 };
    tcu_slots unused;
    part->work(&w, m, &m->layers[0], size, &unused);
    return w.used;
}

static void a_layers_buffers_fit_what_was_measured(void **state)
{
    (void)state;
    tcu_layer layers[PLAN_LAYERS];
    tcu_model m = plan_model(layers);
    const tcu_size size = { .n = 256, .most = 32, .n_data = 4 };
    layers[0].dense.inner = 8192; /* more than attention works in */
    size_t keep = tcu_layers_keep(&m, &size), both = tcu_layers_work(&m, &size);
    unsigned char *base = malloc(keep);
    tcu_walk w = { .at = base };
    tcu_acts acts;
    tcu_layer_keep(&w, &m, &layers[0], &size, &acts);
    assert_int_equal(w.used, keep);
    assert_in_range((unsigned char *)acts.h_mid - base, 1, keep - size.n * 1024 * sizeof(float));
    assert_true(work_of(&tcu_part_attention, &m, &size) <= both);
    assert_true(work_of(&tcu_part_dense, &m, &size) <= both);
    for (size_t i = 0; i < PLAN_LAYERS; i++)
        layers[i].mixer = NULL; /* then nothing lies between two parts */
    assert_true(tcu_layers_keep(&m, &size) + size.n * 1024 * sizeof(float) <= keep);
    free(base);
}

static void sides_pad_each_run(void **state)
{
    (void)state;
    tcu_side head = tcu_side_of(10), whole = tcu_side_of(64);
    assert_int_equal(tcu_side_width(head, 30), 48);
    assert_int_equal(tcu_side_count(head, 48), 30);
    static const struct {
        int32_t at, place;
    } places[] = { { 0, 0 }, { 9, 9 }, { 10, -1 }, { 15, -1 }, { 16, 10 }, { 41, 29 }, { 42, -1 } };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        assert_int_equal(tcu_side_place(head, places[i].at), places[i].place);
    assert_int_equal(tcu_side_width(whole, 64), 64);
    assert_int_equal(tcu_side_place(whole, 63), 63);
}

static void pieces_end_at_chunks_of_positions(void **state)
{
    (void)state;
    tcu_run runs[] = { { .row = 0, .n = 65 }, { .row = 65, .n = 70, .position = 60 }, { .n = 0 },
                       { .row = 135, .n = 1, .position = 128 } };
    static const tcu_piece want[] = { { 0, 0, 64, 0, -1 },   { 0, 64, 1, 64, -1 },   { 1, 65, 4, 60, -1 },
                                      { 1, 69, 64, 64, -1 }, { 1, 133, 2, 128, -1 }, { 3, 135, 1, 128, -1 } };
    tcu_piece out[8];
    assert_int_equal(tcu_fill_pieces(runs, 4, NULL), 6);
    assert_int_equal(tcu_fill_pieces(runs, 4, out), 6);
    assert_memory_equal(out, want, sizeof want);
    assert_int_equal(runs[1].piece, 2);
    assert_int_equal(runs[1].n_pieces, 3);
    assert_int_equal(runs[2].n_pieces, 0);
    assert_int_equal(runs[3].piece, 5);
}

/* The order of pairs as the kernels make it: chunks are counted, added up, placed. */
typedef struct sorted {
    int32_t start[8], pair_of[64], slot_of[64];
} sorted;

static sorted sort_pairs(const int32_t *chosen, int32_t slots, int32_t experts, int32_t chunk)
{
    sorted s = { { 0 }, { 0 }, { 0 } };
    int32_t counts[16][8] = { { 0 } }, before = 0;
    for (int32_t i = 0; i < slots; i++)
        counts[i / chunk][chosen[i]]++;
    for (int32_t e = 0; e < experts; e++) {
        s.start[e] = before;
        for (int32_t c = 0; c * chunk < slots; c++) {
            int32_t own = counts[c][e];
            counts[c][e] = before - s.start[e];
            before += own;
        }
    }
    s.start[experts] = before;
    for (int32_t i = 0; i < slots; i++) {
        int32_t first = i / chunk * chunk;
        s.pair_of[i] =
            s.start[chosen[i]] + counts[i / chunk][chosen[i]] + tcu_rank_in(chosen + first, i - first);
        s.slot_of[s.pair_of[i]] = i;
    }
    return s;
}

static const int32_t choices[] = { 0, 2, 1, 2, 0, 1, 2, 3, 0, 2, 1, 3, 0, 2, 2, 3, 0, 1, 0, 2 };
enum { SLOTS = 20, EXPERTS = 5, TOP = 2 };

static void pairs_are_ordered_by_expert_then_by_row(void **state)
{
    (void)state;
    sorted whole = sort_pairs(choices, SLOTS, EXPERTS, SLOTS),
           chunks = sort_pairs(choices, SLOTS, EXPERTS, 3);
    assert_memory_equal(&whole, &chunks, sizeof whole);
    assert_int_equal(whole.start[EXPERTS], SLOTS);
    for (int32_t i = 1; i < SLOTS; i++) {
        int32_t a = whole.slot_of[i - 1], b = whole.slot_of[i];
        assert_true(choices[a] < choices[b] || (choices[a] == choices[b] && a < b));
    }
}

static void tiles_hold_every_pair_once_and_fit_their_room(void **state)
{
    (void)state;
    sorted s = sort_pairs(choices, SLOTS, EXPERTS, SLOTS);
    int32_t seen[SLOTS] = { 0 }, n = 0;
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int32_t i = 0; i < tcu_tiles_of(s.start[e + 1] - s.start[e], 4); i++, n++) {
            tcu_tile t = tcu_expert_tile(e, s.start[e], s.start[e + 1], i, 4);
            assert_int_equal(t.segment, e);
            assert_in_range(t.n, 1, 4);
            for (int32_t r = 0; r < t.n; r++) {
                assert_int_equal(choices[s.slot_of[t.row + r]], e);
                seen[t.row + r]++;
            }
        }
    for (int32_t i = 0; i < SLOTS; i++)
        assert_int_equal(seen[i], 1);
    assert_true(n <= tcu_tile_room(SLOTS, EXPERTS, 4));
    assert_int_equal(tcu_tile_room(3, 128, 16), 3);
    assert_int_equal(tcu_tile_room(131072, 128, 128), 1152);
}

static void an_experts_steps_begin_with_their_datum_and_have_room(void **state)
{
    (void)state;
    static const int32_t starts[] = { 0, 1, 4, 10 };
    sorted s = sort_pairs(choices, SLOTS, EXPERTS, SLOTS);
    for (int32_t e = 0; e < EXPERTS; e++) {
        int32_t begin = s.start[e], end = s.start[e + 1], at = tcu_steps_at(begin, e, 3);
        for (int32_t d = 0; d < 3; d++) {
            int32_t first = tcu_first_pair(s.slot_of, begin, end, starts[d] * TOP),
                    last = tcu_first_pair(s.slot_of, first, end, starts[d + 1] * TOP);
            for (int32_t i = first; i < last; i++)
                assert_in_range(s.slot_of[i] / TOP, starts[d], starts[d + 1] - 1);
            at += tcu_tiles_of(last - first, TCU_STEP_ROWS);
            begin = last;
        }
        assert_int_equal(begin, end);
        assert_true(at <= tcu_steps_at(end, e + 1, 3));
    }
    for (int32_t rows = 0; rows < 100; rows++) /* as full as can be: a row of each datum alone */
        for (int32_t data = 1; data < 20; data++)
            assert_true(tcu_steps_at(rows, 2, data) +
                            tcu_tiles_of(40, TCU_STEP_ROWS) + (data - 1) <=
                        tcu_steps_at(rows + 40 + data - 1, 3, data));
}

/* With a card this tests nothing; without one the message says what is missing. */
static void a_missing_card_is_named(void **state)
{
    (void)state;
    tinkc_error err = { 0 };
    if (tcu_probe(-1, &err))
        skip();
    assert_int_equal(err.code, TINKC_E_UNSUPPORTED);
    assert_true(strstr(err.message, "cuda: no driver") ||
                strstr(err.message, "cuda: the driver is too old") ||
                strstr(err.message, "cuda: no device") ||
                strstr(err.message, "compute capability"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_known_algorithms),
        cmocka_unit_test(steps_begin_with_their_datum),
        cmocka_unit_test(tiles_stay_in_their_segment),
        cmocka_unit_test(segments_know_their_steps),
        cmocka_unit_test(rows_are_padded),
        cmocka_unit_test(memory_plan_grows_with_what_is_kept),
        cmocka_unit_test(groups_have_the_models_sizes),
        cmocka_unit_test(a_layers_buffers_fit_what_was_measured),
        cmocka_unit_test(sides_pad_each_run),
        cmocka_unit_test(pieces_end_at_chunks_of_positions),
        cmocka_unit_test(pairs_are_ordered_by_expert_then_by_row),
        cmocka_unit_test(tiles_hold_every_pair_once_and_fit_their_room),
        cmocka_unit_test(an_experts_steps_begin_with_their_datum_and_have_room),
        cmocka_unit_test(a_missing_card_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
