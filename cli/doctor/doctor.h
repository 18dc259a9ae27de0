/* doctor.h - what the parts of `tinkc doctor` share: one finding after the other. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "cli/main/app.h"
#include "cli/doctor/tlsprobe.h"

enum { CHECK_OK, CHECK_WARN, CHECK_FAIL, CHECK_SKIP };
enum { CHECK_SECONDS = 5 }; /* what one check may take */

typedef struct doctor {
    cli_app *app;
    tkc_tree *checks;
    int64_t begun_ms; /* of the check that is running */
    size_t counts[4]; /* by status */
    cli_tls tls;      /* what a handshake settled on; empty = there was none */
    bool online;      /* --online: what cannot be asked is a failure */
} doctor;

/* Adds a check and begins the next one. `hint` (may be NULL) is shown where something is wrong. */
void cli_config_value(doctor *, const char *id, int status, const char *hint, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));

/* The way to the service and what it answers. `credential`: there is one of the right shape. */
void cli_doctor_service(doctor *, bool credential);

/* Starts to look the hub's name up, to be awaited later. False if the hub is not to be asked. */
bool cli_doctor_begin_hub(const doctor *);
void cli_doctor_hub_reach(doctor *, bool begun);

/* How long the running check may still wait; less where --timeout ends before. */
int64_t cli_doctor_left_ms(const doctor *, int64_t begun_ms);

/* Whether clocks that differ by so much are wrong, and not only read at different moments. */
bool cli_doctor_is_skewed(int64_t seconds);

/* As the library reads TINKER_TELEMETRY. */
bool cli_doctor_is_on(const char *text);

#endif
