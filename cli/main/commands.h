/* commands.h - the functions behind the table: each runs one command and returns its exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "cli/output/out.h"

extern const cli_column cli_usage_columns[], cli_run_columns[], cli_checkpoint_columns[], cli_session_columns[],
    cli_model_columns[], cli_audit_columns[], cli_storage_columns[];

/* Options and examples that stand beside their command. */
extern const cli_option cli_pull_options[], cli_push_options[], cli_export_options[],
    cli_quantize_options[];
extern const char *const cli_pull_examples[], *const cli_push_examples[],
                                                  *const cli_export_examples[],
                                                      *const cli_quantize_examples[];

int cli_run_list(cli_app *);
int cli_run_info(cli_app *);
int cli_run_delete(cli_app *);
int cli_checkpoint_list(cli_app *);
int cli_checkpoint_search(cli_app *);
int cli_checkpoint_info(cli_app *);
int cli_checkpoint_publish(cli_app *);
int cli_checkpoint_unpublish(cli_app *);
int cli_checkpoint_set_ttl(cli_app *);
int cli_checkpoint_delete(cli_app *);
int cli_checkpoint_download(cli_app *);
int cli_checkpoint_push_hf(cli_app *);
int cli_checkpoint_url(cli_app *);
int cli_checkpoint_copy(cli_app *);
int cli_checkpoint_upload(cli_app *);
int cli_checkpoint_export(cli_app *);
int cli_quantize(cli_app *);
int cli_session_list(cli_app *);
int cli_session_info(cli_app *);
int cli_session_move(cli_app *);
int cli_session_export_trace(cli_app *);
int cli_model_list(cli_app *);
int cli_model_info(cli_app *);
int cli_model_add(cli_app *);
int cli_sampler_info(cli_app *);
int cli_billing_usage(cli_app *);
int cli_billing_storage(cli_app *);
int cli_audit_list(cli_app *);
int cli_audit_sync(cli_app *);
int cli_auth_login(cli_app *);
int cli_auth_status(cli_app *);
int cli_auth_logout(cli_app *);
int cli_auth_token(cli_app *);
int cli_whoami(cli_app *);
int cli_sample(cli_app *);
int cli_chat(cli_app *);
int cli_logprobs(cli_app *);
int cli_train_sft(cli_app *);
int cli_train_rl(cli_app *);
int cli_train_dpo(cli_app *);
int cli_train_distill(cli_app *);
int cli_train_sweep(cli_app *);
int cli_eval_run(cli_app *);
int cli_eval_show(cli_app *);
int cli_eval_compare(cli_app *);
int cli_env_check(cli_app *);
int cli_train_resume(cli_app *);
int cli_data_check(cli_app *);
int cli_data_stats(cli_app *);
int cli_data_preview(cli_app *);
int cli_data_split(cli_app *);
int cli_data_convert(cli_app *);
void cli_data_forms(FILE *);
int cli_logs_show(cli_app *);
int cli_logs_tail(cli_app *);
int cli_logs_plot(cli_app *);
int cli_logs_trace(cli_app *);
int cli_tokenizer_encode(cli_app *);
int cli_tokenizer_decode(cli_app *);
int cli_tokenizer_count(cli_app *);
int cli_tokenizer_chat_template(cli_app *);
int cli_tokenizer_info(cli_app *);
int cli_pull(cli_app *);
int cli_serve(cli_app *);
int cli_ui(cli_app *);
int cli_logs_report(cli_app *);
int cli_doctor(cli_app *);
int cli_store_check(cli_app *);
int cli_store_repair(cli_app *);
int cli_store_usage(cli_app *);
int cli_store_gc(cli_app *);
int cli_config_list(cli_app *);
int cli_config_get_command(cli_app *);
int cli_config_set(cli_app *);
int cli_config_unset(cli_app *);
int cli_config_show_path(cli_app *);
int cli_config_edit(cli_app *);
int cli_config_use_profile(cli_app *);
int cli_config_profiles(cli_app *);
int cli_api(cli_app *);
int cli_completion(cli_app *);
int cli_complete(cli_app *);        /* hidden: answers the shells */
int cli_store_host_main(cli_app *); /* hidden: store_host.c */
int cli_man(cli_app *);
int cli_help(cli_app *);
int cli_version(cli_app *);

/* Help of a command, a noun, or the whole program. */
void cli_help_command(const cli_app *, const cli_command *, bool whole);
void cli_help_noun(const char *noun);
void cli_help_program(void);

#endif
