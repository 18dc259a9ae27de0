/* tinker_path.c - tinker://RUN/KIND/NAME. Pure, except for the text it fills. */
#include "codec/tinker_path.h"

#include <string.h>

#include "base/mem.h"

static bool bad_path(tinkc_str text, tinkc_error *err)
{
    enum { SHOWN = 200 };
    return tkc_fail(err, TINKC_E_PATH,
                    "not a tinker path (tinker://RUN/weights/NAME or "
                    "tinker://RUN/sampler_weights/NAME): %.*s",
                    (int)(text.len < SHOWN ? text.len : SHOWN), text.data ? text.data : "");
}

static bool split_id(tinkc_str text, int32_t *kind, tinkc_str *name)
{
    size_t slash = tkc_str_find(text, '/');
    tinkc_str first = tkc_strn(text.data, slash);
    if (slash + 1 >= text.len)
        return false;
    *name = tkc_strn(text.data + slash + 1, text.len - slash - 1);
    *kind = tkc_str_is(first, "weights")            ? TINKC_CHECKPOINT_TRAINING
            : tkc_str_is(first, "sampler_weights")  ? TINKC_CHECKPOINT_SAMPLER
            : tkc_str_is(first, "external_weights") ? TINKC_CHECKPOINT_EXTERNAL
                                                    : 0;
    return *kind != 0 && tkc_str_find(*name, '/') == name->len;
}

/* tinker://RUN/REST; neither part is empty. */
static bool split_run(tinkc_str text, tinkc_path *out)
{
    static const char prefix[] = "tinker://";
    if (!text.data || !tkc_starts_with(text, prefix))
        return false;
    tinkc_str rest = tkc_strn(text.data + strlen(prefix), text.len - strlen(prefix));
    size_t slash = tkc_str_find(rest, '/');
    if (slash == 0 || slash + 1 >= rest.len)
        return false;
    *out = (tinkc_path){ .run_id = tkc_strn(rest.data, slash) };
    out->checkpoint_id = tkc_strn(rest.data + slash + 1, rest.len - slash - 1);
    return true;
}

bool tkc_tinker_path(tinkc_str text, tinkc_path *out, tinkc_error *err)
{
    tinkc_path found;
    if (!split_run(text, &found) || !split_id(found.checkpoint_id, &found.kind, &found.name))
        return bad_path(text, err);
    *out = found;
    return true;
}

bool tkc_tinker_path_any(const char *path, tinkc_path *out, tinkc_error *err)
{
    tinkc_path found;
    tinkc_str text = tkc_str(path);
    if (!path)
        return tkc_fail(err, TINKC_E_ARGUMENT, "path: must not be NULL");
    if (!split_run(text, &found) ||
        tkc_str_find(found.checkpoint_id, '/') < found.checkpoint_id.len)
        return tkc_tinker_path(text, out, err);
    found.kind = TINKC_CHECKPOINT_SAMPLER;
    found.name = found.checkpoint_id;
    *out = found;
    return true;
}

bool tkc_tinker_path_given(const char *path, tinkc_error *err)
{
    static const char prefix[] = "tinker://";
    if (!path)
        return tkc_fail(err, TINKC_E_ARGUMENT, "path: must not be NULL");
    if (!tkc_starts_with(tkc_str(path), prefix) || !path[strlen(prefix)])
        return tkc_fail(err, TINKC_E_PATH, "path: must begin with tinker://, not '%.200s'", path);
    return true;
}

bool tinkc_path_parse(const char *path, tinkc_path *out, tinkc_error *err)
{
    tinkc_error local;
    if (!tkc_enter(&err, &local))
        return false;
    if (!path || !out)
        return tkc_fail(err, TINKC_E_ARGUMENT, "path or out is NULL");
    return tkc_tinker_path(tkc_str(path), out, err);
}

const char *tinkc_path_join(const char *run_id, const char *checkpoint_id, tinkc_text *out,
                            tinkc_error *err)
{
    tinkc_error local;
    tinkc_path parsed;
    if (!tkc_enter(&err, &local))
        return "";
    if (!run_id || !checkpoint_id || !out) {
        tkc_fail(err, TINKC_E_ARGUMENT, "run_id, checkpoint_id or out is NULL");
        return "";
    }
    out->len = 0;
    tinkc_text_append(out, "tinker://", strlen("tinker://"), err);
    tinkc_text_append(out, run_id, strlen(run_id), err);
    tinkc_text_append(out, "/", 1, err);
    tinkc_text_append(out, checkpoint_id, strlen(checkpoint_id), err);
    if (tkc_failed(err) || !tkc_tinker_path(tkc_strn(out->data, out->len), &parsed, err))
        return "";
    return out->data;
}
