/* log.c - log lines. Must not: keep state, lock, or let a credential through. */
#include "base/log.h"

#include <assert.h>
#include <stdio.h>

#include "base/str.h"

void tkc_log_line(const tkc_log *log, int32_t level, const char *format, ...)
{
    char line[1024];
    if (!log->fn || level > log->level)
        return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0)
        return;
    tkc_redact(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    log->fn(level, line, log->user);
}

bool tkc_log_gate_pass(tkc_log_gate *gate, int64_t now_ms, int64_t interval_ms, uint64_t *held_back)
{
    assert(interval_ms >= 0);
    if (now_ms < gate->next_ms) {
        gate->held_back++;
        return false;
    }
    *held_back = gate->held_back;
    *gate = (tkc_log_gate){ now_ms + interval_ms, 0 };
    return true;
}
