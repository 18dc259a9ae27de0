/* envmetrics.c - means and counts over the rollouts of a batch. Failed rollouts are left out. */
#include "recipes/envmetrics.h"

#include <string.h>

typedef struct counts {
    size_t episodes, turns, sampled, read, groups, mixed, all_good, all_bad;
    double reward;
} counts;

static void count_group(const tinkc_group *g, counts *c)
{
    double first = 0;
    size_t n = 0;
    bool mixed = false;
    for (size_t i = 0; i < tinkc_group_count(g); i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        if (r->error)
            continue;
        if (n++ == 0)
            first = r->reward;
        mixed = mixed || r->reward != first;
        c->episodes++;
        c->turns += r->turns;
        c->sampled += r->sampled_tokens;
        c->read += r->read_tokens;
        c->reward += r->reward;
    }
    if (n == 0)
        return;
    c->groups++;
    c->mixed += mixed;
    c->all_good += !mixed && first >= 0.5;
    c->all_bad += !mixed && first < 0.5;
}

static double share(size_t part, size_t of)
{
    return of ? (double)part / (double)of : 0;
}

static bool add_own(tkr_table *t, const tinkc_group *g, const char *prefix, const char *tag,
                    tinkc_error *err)
{
    char name[240];
    for (size_t i = 0; i < tinkc_group_count(g); i++) {
        const tinkc_rollout *r = tinkc_group_at(g, i);
        for (size_t k = 0; !r->error && r->metric_names[k]; k++) {
            (void)snprintf(name, sizeof name, "%s/%s/%s", prefix, tag, r->metric_names[k]);
            if (!tkr_table_mean(t, name, r->metric_values[k], err))
                return false;
        }
    }
    return true;
}

static bool add_tag(tkr_table *t, const tinkc_group *const *all, size_t n, const char *prefix,
                    const char *tag, tinkc_error *err)
{
    counts c = { 0 };
    bool everything = strcmp(tag, "all") == 0;
    for (size_t i = 0; i < n; i++) {
        const char *own = tinkc_group_tag(all[i]);
        if (!everything && (!own || strcmp(own, tag) != 0))
            continue;
        count_group(all[i], &c);
        add_own(t, all[i], prefix, tag, err);
    }
    const struct {
        const char *name;
        double value;
    } rows[] = {
        { "reward/total", c.episodes ? c.reward / (double)c.episodes : 0 },
        { "ac_tokens_per_turn", share(c.sampled, c.turns) },
        { "ob_tokens_per_turn", share(c.read, c.turns) },
        { "turns_per_episode", share(c.turns, c.episodes) },
        { "total_episodes", (double)c.episodes },
        { "total_turns", (double)c.turns },
        { "total_ac_tokens", (double)c.sampled },
        { "total_ob_tokens", (double)c.read },
        { "by_group/frac_mixed", share(c.mixed, c.groups) },
        { "by_group/frac_all_good", share(c.all_good, c.groups) },
        { "by_group/frac_all_bad", share(c.all_bad, c.groups) },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        tkr_table_setf(t, rows[i].value, err, "%s/%s/%s", prefix, tag, rows[i].name);
    return !tkc_failed(err);
}

bool tkr_env_metrics(tkr_table *t, const tinkc_group *const *all, size_t n, const char *prefix,
                     tinkc_error *err)
{
    enum { MOST_TAGS = 32 };
    const char *tags[MOST_TAGS];
    size_t n_tags = 0;
    for (size_t i = 0; i < n; i++) {
        const char *tag = tinkc_group_tag(all[i]);
        bool known = !tag;
        for (size_t k = 0; k < n_tags && !known; k++)
            known = strcmp(tags[k], tag) == 0;
        if (!known && n_tags < MOST_TAGS)
            tags[n_tags++] = tag;
    }
    if (!add_tag(t, all, n, prefix, "all", err))
        return false;
    for (size_t k = 0; n_tags > 1 && k < n_tags; k++)
        if (!add_tag(t, all, n, prefix, tags[k], err))
            return false;
    return true;
}

bool tinkc_recipe_metrics(const tinkc_group *const *all, size_t n, const char *prefix,
                          tinkc_recipe_metric_fn *fn, void *user, tinkc_error *err)
{
    tinkc_error local;
    tkr_table t = { 0 };
    if (!tkc_enter(&err, &local))
        return false;
    bool ok = tkr_env_metrics(&t, all, n, prefix, err);
    for (size_t i = 0; ok && i < t.n; i++)
        fn(t.names[i], t.values[i], user);
    tkr_table_free(&t);
    return ok;
}
