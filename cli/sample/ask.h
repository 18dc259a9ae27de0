/* ask.h - one question to a model: prompt in, answers out. Shared by sample, chat and batches. */
#ifndef CLI_ASK_H
#define CLI_ASK_H

#include "cli/models/weights.h"

/* Whether the sampling options make sense; before anything is asked of the service. 0, or an exit
 * code after reporting. */
int cli_check_sampling(const cli_app *);
/* Sampling numbers and stops as given on the command line, which were checked; lists are yours
 * (cli_free_sampling). */
int cli_sampling_options(cli_app *, const cli_asked *, bool raw, tinkc_sampling *out);
/* Stops where an answer in the model's chat format ends, or (raw) a text. False: out of memory. */
bool cli_stop_as_usual(const cli_asked *, bool raw, tinkc_sampling *out);
void cli_free_sampling(tinkc_sampling *);
/* Lowers max_tokens to what the model's context leaves behind a prompt, with a note. */
void cli_clamp_tokens(cli_app *, cli_asked *, size_t n_prompt, tinkc_sampling *);
/* The same from a JSON object's members (a batch line), over what is there. False with *why saying
 * which of them makes no sense. */
bool cli_sampling_members(const tkc_tree *, tinkc_sampling *, char why[CLI_WHY]);
/* Whether prompts are continued as they are: --raw, else by the kind of the model. */
bool cli_prompts_raw(const cli_app *, const cli_asked *);

/* Whether a text can be a message. 0, or an exit code after reporting. */
int cli_check_message(const cli_app *, const char *text, size_t len);
/* Takes off the line end that the shell's tools put behind a text; the length that is left. */
size_t cli_strip_newline(char *text, size_t len);
/* Token ids from a JSON array; false, and nothing is added, if it is none or holds anything else.
 */
bool cli_token_list(const tkc_tree *, tinkc_tokens *out);
/* Messages (an array) with --system at their head, unless they begin with a system message of their
 * own. */
tkc_tree *cli_with_system(const cli_app *, tkc_arena *, const tkc_tree *messages);
/* Messages (an array) to a prompt that ends where the assistant speaks. tools (an array) may be NULL;
 * a chat template that leaves them out is an error. */
bool cli_render_prompt(const cli_asked *, const tkc_tree *messages, const tkc_tree *tools,
                       tinkc_tokens *out, tinkc_error *err);

/* Text of an answer as it becomes certain. */
typedef void cli_text_fn(const char *text, size_t len, void *user);
/* Asks, and passes the text on as it comes. False: the service cannot stream (err is clear), and
 * nothing was handed over. Ends early with what has come after a signal or at --timeout. */
bool cli_stream(cli_app *, const cli_asked *, const tinkc_tokens *prompt, const tinkc_sampling *,
                cli_text_fn *, void *user, tinkc_tokens *answer, int32_t *stop, tinkc_error *err);

/* The text of an answer without its end mark; yours. */
char *cli_answer_text(const cli_asked *, const tinkc_sequence *, const tinkc_sampling *);
/* Warns of an answer (NULL = none) in which there is nothing to read. */
void cli_warn_empty(const cli_app *, const char *text, size_t n_tokens);
/* "stop_sequence", "eos" or "malformed" (it reached the limit). */
const char *cli_termination(const cli_asked *, const tinkc_sequence *);
/* The answer without its <think> part (hide), or that part alone (only); yours. */
char *cli_thinking(const char *text, const char *how);
/* tokens, logprobs, text, ... of one answer. */
tkc_tree *cli_sequence_json(tkc_arena *, const cli_asked *, const tinkc_sequence *,
                            const tinkc_sampling *, bool chat);

#endif
