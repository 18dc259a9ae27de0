/* parameters.c - the _INIT macros of the public headers as functions, for languages without macros. */
#include "tinkc/tinkc.h"

void tinkc_adam_init(tinkc_adam *adam)
{
    if (adam)
        *adam = (tinkc_adam)TINKC_ADAM_INIT;
}

void tinkc_dimuon_init(tinkc_dimuon *dimuon)
{
    if (dimuon)
        *dimuon = (tinkc_dimuon)TINKC_DIMUON_INIT;
}

void tinkc_sampling_init(tinkc_sampling *sampling)
{
    if (sampling)
        *sampling = (tinkc_sampling)TINKC_SAMPLING_INIT;
}
