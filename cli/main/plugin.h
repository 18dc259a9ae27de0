/* plugin.h - programs named tinkc-NAME on the PATH, which become commands. */
#ifndef CLI_PLUGIN_H
#define CLI_PLUGIN_H

/* Becomes tinkc-NAME if the first word is NAME, we have no such command, and there is such a
 * program. Returns only if not. */
void cli_try_plugin(char **argv);
/* Prints the names of those found, one a line, indented; nothing if there is none. */
void cli_list_plugins(void);

#endif
