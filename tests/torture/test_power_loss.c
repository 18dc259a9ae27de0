/* test_power_loss.c - power is lost at any moment of a service's life: what was promised is there.
 *
 * The script of support/service/store_script.h is played against an engine whose store is recorded by
 * preload/powerloss.c. For moments in between, the folders that a power loss may leave are built, an
 * engine is started on each, and the script says what must hold.
 *
 * The normal run tries a sample; TINKC_POWER_LOSS=all (`make powerloss`) tries every moment in every
 * way. Moments and violations are printed. The last test leaves out one sync at a time and must find
 * violations, so that a hole in the record or in the checks does not look like a good store.
 */
#include <unistd.h>

#include "preload/powerloss.h"
#include "support/service/store_script.h"

/* ---- power is lost ---- */

static const char *way_name(int way)
{
    static const char *const names[] = { "lost", "kept", "names only", "bytes only", "mixed" };
    return names[way];
}

static void lose_power(size_t moment, int way, uint64_t seed)
{
    char *folder = tiny_folder();
    int n = powerloss_promised(moment);
    const char *kept[] = { session, model, second, sampler };
    snprintf(where, sizeof where, "moment %zu of %zu (%s, seed %llu), after action %d", moment, powerloss_moments(),
             way_name(way), (unsigned long long)seed, n - 1);
    assert_int_equal(rmdir(folder), 0);
    powerloss_build(moment, way, seed, folder);
    check_state(folder, n);
    session = kept[0], model = kept[1], second = kept[2], sampler = kept[3];
    tiny_model_remove(folder);
}

static bool is_whole_run(void)
{
    const char *how = getenv("TINKC_POWER_LOSS");
    return how && strcmp(how, "all") == 0;
}

/* Every moment in every way, or about so many of them, at syncs first of all. */
static void lose_power_often(size_t about)
{
    size_t n_moments = powerloss_moments(), n_states = 0, n_syncs = 0, n_tried = 0;
    uint64_t luck = 7;
    for (size_t i = 0; i < n_moments; i++)
        n_syncs += powerloss_at_sync(i);
    for (size_t i = 0; i < n_moments; i++) {
        bool tried = is_whole_run();
        for (int way = 0; way < POWERLOSS_WAYS; way++) {
            size_t odds = powerloss_at_sync(i) ? n_syncs : 4 * n_moments;
            if (!is_whole_run() && tiny_random(&luck) % (odds * 2) >= about)
                continue;
            lose_power(i, way, i);
            tried = true;
            n_states++;
        }
        n_tried += tried;
    }
    printf("power loss (durability %d): %zu moments, %zu of them at syncs; cut points tried %zu, "
           "states %zu, violations %zu\n",
           (int)durability, n_moments, n_syncs, n_tried, n_states, n_violations);
    assert_true(n_states > 0);
}

static void record(int32_t level)
{
    char *store = tiny_folder();
    int done;
    durability = level;
    n_violations = 0;
    powerloss_start(store);
    if (!play(store, powerloss_mark, &done))
        fail_msg("action %d: %s", done, said);
    powerloss_stop();
    tiny_model_remove(store);
}

static void every_moment(int32_t level)
{
    record(level);
    lose_power_often(40);
    assert_int_equal(n_violations, 0);
}

TEST(with_a_journal)
{
    every_moment(TINKC_DURABILITY_JOURNAL);
}

TEST(with_snapshots)
{
    every_moment(TINKC_DURABILITY_SNAPSHOT);
}

TEST(with_checkpoints_alone)
{
    every_moment(TINKC_DURABILITY_CHECKPOINT);
}

/* Each sync that is left out breaks a promise somewhere. */
TEST(missing_syncs_are_noticed)
{
    static const struct {
        int32_t durability;
        const char *path;
    } holes[] = {
        { TINKC_DURABILITY_CHECKPOINT, "meta.db-wal" }, { TINKC_DURABILITY_CHECKPOINT, "adapter_model.safetensors" },
        { TINKC_DURABILITY_CHECKPOINT, "/weights" },    { TINKC_DURABILITY_CHECKPOINT, "/runs" },
        { TINKC_DURABILITY_JOURNAL, "/journal" },
    };
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
        powerloss_ignore(holes[i].path);
        record(holes[i].durability);
        powerloss_ignore(NULL);
        size_t n = powerloss_moments();
        violations_are_wanted = true;
        for (size_t moment = n; moment > 0 && !n_violations; moment -= moment > 10 ? 10 : moment)
            for (int way = 0; way < POWERLOSS_WAYS && !n_violations; way++)
                if (way == POWERLOSS_LOST || way == POWERLOSS_NAMES)
                    lose_power(moment - 1, way, 1);
        violations_are_wanted = false;
        if (!n_violations)
            fail_msg("nobody notices that %s is not synced", holes[i].path);
    }
}

RUN_TESTS(prepare, teardown)
