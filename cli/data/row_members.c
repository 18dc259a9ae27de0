/* row_members.c - lists of names. Must not: know what rows mean. */
#include "cli/data/row_members.h"

#include <string.h>

/* `words`: each between blanks. */
static bool is_among(const char *words, const char *word, size_t len)
{
    for (const char *p = words; len && (p = memmem(p, strlen(p), word, len)); p += len)
        if (p > words && p[-1] == ' ' && p[len] == ' ')
            return !memchr(word, ' ', len);
    return false;
}

bool cli_row_harmless(cli_span member)
{
    static const char names[] =
        " id _id idx index uid uuid row_id prompt_id question_id sample_id conversation_id "
        "conversation_hash session_id task_id user_id __index_level_0__ hash key name "
        "source sources data_source dataset origin provenance subset split url link title license "
        "author annotator task task_type category categories topic domain subject field type kind "
        "ability skill skills language lang difficulty level quality rating score scores "
        "score_chosen score_rejected chosen_score rejected_score chosen_rating rejected_rating "
        "margin model model_name chosen_model rejected_model generator timestamp date time created "
        "created_at metadata meta extra_info info tags tag comment comments note notes version "
        "length num_turns turns n_tokens num_tokens token_count tokens parallel_tool_calls ";
    return is_among(names, member.data, member.len);
}

bool cli_row_harmless_in_message(cli_span member)
{
    static const char names[] =
        " role content name tool_calls tool_call_id weight trainable reasoning_content reasoning "
        "thinking id refusal annotations function_call ";
    return is_among(names, member.data, member.len);
}
