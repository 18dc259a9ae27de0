/* run_state.c - the transitions of a run, as tables: a transition not listed is impossible.
 *
 * Pure functions of three small integers; the diagrams are in the header.
 */
#include "service/worker/run_state.h"

#include <stddef.h>

typedef struct transition {
    uint8_t event, from, to;
} transition;

static const transition life[] = {
    { TKE_ON_MADE, TKE_RUN_CREATING, TKE_RUN_READY },
    { TKE_ON_MADE, TKE_RUN_UNLOADING,
      TKE_RUN_UNLOADING }, /* the unload was asked for before it was made */
    { TKE_ON_NOT_MADE, TKE_RUN_CREATING, TKE_RUN_FAILED },
    { TKE_ON_NOT_MADE, TKE_RUN_UNLOADING, TKE_RUN_FAILED },
    { TKE_ON_NOT_MADE, TKE_RUN_READY, TKE_RUN_FAILED },    /* recovery finds nothing to load */
    { TKE_ON_NOT_MADE, TKE_RUN_UNLOADED, TKE_RUN_FAILED }, /* a copy that could not be written */
    { TKE_ON_UNLOAD_ASKED, TKE_RUN_CREATING, TKE_RUN_UNLOADING },
    { TKE_ON_UNLOAD_ASKED, TKE_RUN_READY, TKE_RUN_UNLOADING },
    { TKE_ON_UNLOAD_ASKED, TKE_RUN_FAILED, TKE_RUN_FAILED },
    { TKE_ON_UNLOADED, TKE_RUN_UNLOADING, TKE_RUN_UNLOADED },
    { TKE_ON_UNLOADED, TKE_RUN_FAILED, TKE_RUN_UNLOADED },
    { TKE_ON_UNLOADED, TKE_RUN_CREATING, TKE_RUN_UNLOADED }, /* a copy: it is never trained */
};

static const transition memory[] = {
    { TKE_ON_NO_ROOM, TKE_RUN_ASLEEP, TKE_RUN_WAITING },
    { TKE_ON_NO_ROOM, TKE_RUN_WAITING, TKE_RUN_WAITING },
    { TKE_ON_ROOM_SETTLED, TKE_RUN_WAITING, TKE_RUN_ASLEEP },
    { TKE_ON_ROOM_SETTLED, TKE_RUN_ASLEEP, TKE_RUN_ASLEEP },
    { TKE_ON_ROOM_SETTLED, TKE_RUN_AWAKE, TKE_RUN_AWAKE },
    { TKE_ON_ROOM_SETTLED, TKE_RUN_LEAVING, TKE_RUN_LEAVING },
    { TKE_ON_ROOM_SETTLED, TKE_RUN_YIELDING, TKE_RUN_YIELDING },
    { TKE_ON_LOADED, TKE_RUN_ASLEEP, TKE_RUN_AWAKE },
    { TKE_ON_LOADED, TKE_RUN_WAITING, TKE_RUN_AWAKE },
    { TKE_ON_ASKED_TO_SLEEP, TKE_RUN_AWAKE, TKE_RUN_LEAVING },
    { TKE_ON_ASKED_TO_YIELD, TKE_RUN_AWAKE, TKE_RUN_YIELDING },
    { TKE_ON_STAYS, TKE_RUN_LEAVING, TKE_RUN_AWAKE },
    { TKE_ON_STAYS, TKE_RUN_YIELDING, TKE_RUN_AWAKE },
    { TKE_ON_RELEASED, TKE_RUN_AWAKE, TKE_RUN_ASLEEP },
    { TKE_ON_RELEASED, TKE_RUN_LEAVING, TKE_RUN_ASLEEP },
    { TKE_ON_RELEASED, TKE_RUN_YIELDING, TKE_RUN_ASLEEP },
};

static const transition image[] = {
    { TKE_ON_IMAGE_ASKED, TKE_IMAGE_IDLE, TKE_IMAGE_WANTED },
    { TKE_ON_IMAGE_ASKED, TKE_IMAGE_FAILED, TKE_IMAGE_WANTED },
    { TKE_ON_IMAGE_ASKED, TKE_IMAGE_WANTED, TKE_IMAGE_WANTED },
    { TKE_ON_IMAGE_ASKED, TKE_IMAGE_WRITING, TKE_IMAGE_WRITING_AGAIN },
    { TKE_ON_IMAGE_ASKED, TKE_IMAGE_WRITING_AGAIN, TKE_IMAGE_WRITING_AGAIN },
    { TKE_ON_IMAGE_DROPPED, TKE_IMAGE_IDLE, TKE_IMAGE_IDLE },
    { TKE_ON_IMAGE_DROPPED, TKE_IMAGE_FAILED, TKE_IMAGE_FAILED },
    { TKE_ON_IMAGE_DROPPED, TKE_IMAGE_WANTED, TKE_IMAGE_IDLE },
    { TKE_ON_IMAGE_DROPPED, TKE_IMAGE_WRITING, TKE_IMAGE_WRITING },
    { TKE_ON_IMAGE_DROPPED, TKE_IMAGE_WRITING_AGAIN, TKE_IMAGE_WRITING },
    { TKE_ON_IMAGE_BEGUN, TKE_IMAGE_IDLE, TKE_IMAGE_WRITING },
    { TKE_ON_IMAGE_BEGUN, TKE_IMAGE_WANTED, TKE_IMAGE_WRITING },
    { TKE_ON_IMAGE_BEGUN, TKE_IMAGE_FAILED, TKE_IMAGE_WRITING },
    { TKE_ON_IMAGE_WRITTEN, TKE_IMAGE_WRITING, TKE_IMAGE_IDLE },
    { TKE_ON_IMAGE_WRITTEN, TKE_IMAGE_WRITING_AGAIN, TKE_IMAGE_WANTED },
    { TKE_ON_IMAGE_LOST, TKE_IMAGE_WRITING, TKE_IMAGE_FAILED },
    { TKE_ON_IMAGE_LOST, TKE_IMAGE_WRITING_AGAIN, TKE_IMAGE_WANTED },
    { TKE_ON_IMAGE_FORGIVEN, TKE_IMAGE_FAILED, TKE_IMAGE_IDLE },
};

static const transition *find(const transition *table, size_t n, tke_run_event event, int from)
{
    for (size_t i = 0; i < n; i++)
        if (table[i].event == event && table[i].from == from)
            return &table[i];
    return NULL;
}

bool tke_run_move(tke_run_states *s, tke_run_event event)
{
    /* Each event belongs to one machine, given by its place in the enum. */
    const transition *t;
    if (event <= TKE_ON_UNLOADED) {
        t = find(life, sizeof life / sizeof *life, event, (int)s->life);
        s->life = t ? (tke_run_life)t->to : s->life;
    } else if (event <= TKE_ON_RELEASED) {
        t = find(memory, sizeof memory / sizeof *memory, event, (int)s->memory);
        s->memory = t ? (tke_run_memory)t->to : s->memory;
    } else {
        t = find(image, sizeof image / sizeof *image, event, (int)s->image);
        s->image = t ? (tke_run_image)t->to : s->image;
    }
    return t != NULL;
}

int64_t tke_run_stored_life(tke_run_states s)
{
    return s.life == TKE_RUN_UNLOADING ? TKE_RUN_READY : (int64_t)s.life;
}

tke_run_life tke_run_life_of_row(int64_t column)
{
    /* A value of a newer version or a damaged row must not train: a failed run answers with an
     * error, and its checkpoints can be used. */
    return column >= TKE_RUN_CREATING && column <= TKE_RUN_UNLOADED ? (tke_run_life)column
                                                                    : TKE_RUN_FAILED;
}
