/* adapter_forms.h - an adapter or a model in another form. */
#ifndef CLI_ADAPTER_FORMS_H
#define CLI_ADAPTER_FORMS_H

#include "cli/main/app.h"

/* Makes what the options ask for; `label` begins the bar. 0, or an exit code after reporting. */
int cli_make_form(const cli_app *, const tinkc_adapter_options *, const char *label);

#endif
