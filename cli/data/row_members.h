/* row_members.h - members of rows that only describe them: nothing is lost if they are not read. */
#ifndef CLI_ROW_MEMBERS_H
#define CLI_ROW_MEMBERS_H

#include "cli/data/json_scan.h"

bool cli_row_harmless(cli_span member);
/* Of a message: those that are read, too. */
bool cli_row_harmless_in_message(cli_span member);

#endif
