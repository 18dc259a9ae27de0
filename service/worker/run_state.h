/* run_state.h - the three state machines of a training run, and the one function that moves them.
 *
 * A run is in one state of each machine. They are separate because their causes are: clients make
 * and unload a run, memory decides where its weights are, durability decides when an image is
 * written.
 *
 *   life (column runs.state holds all but UNLOADING, which a restart forgets)
 *
 *       CREATING --made--> READY --unload_asked--> UNLOADING --unloaded--> UNLOADED
 *           |                                          |
 *           +--not_made--> FAILED <------not_made------+
 *
 *   memory (run->adapter is set exactly in AWAKE, LEAVING and YIELDING)
 *
 *       ASLEEP --no_room--> WAITING --loaded--> AWAKE --asked_to_sleep--> LEAVING
 *          ^                                    |  ^                        | |
 *          |                     asked_to_yield |  +---------stays----------+ |
 *          |                                    v                             |
 *          +--------------released---------- YIELDING                         |
 *          +--------------released--------------------------------------------+
 *
 *     A yielding run has work, but runs nothing until its weights have been written and released; a
 *     leaving run is idle, and work that arrives meanwhile makes it stay.
 *
 *   image (the copy of a run's weights and optimizer on disk)
 *
 *       IDLE --image_asked--> WANTED --image_begun--> WRITING --image_written--> IDLE
 *                               ^                      |   |
 *                               |   image_asked        |   +--image_lost--> FAILED
 *                               |                      v
 *                               +----(either end)--- WRITING_AGAIN
 *
 *     FAILED behaves like IDLE, except that such a run is not asked to yield: its weights exist
 *     only in memory.
 *
 * Locks: everything here needs svc->lock. The worker may read `life` without it: only the worker
 * changes it after the run was added, except for unload_asked.
 */
#ifndef TKE_SERVICE_RUN_STATE_H
#define TKE_SERVICE_RUN_STATE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum tke_run_life {
    TKE_RUN_CREATING = 0,
    TKE_RUN_READY = 1,
    TKE_RUN_UNLOADED = 2,
    TKE_RUN_FAILED = 3,
    TKE_RUN_UNLOADING = 4
} tke_run_life;

typedef enum tke_run_memory {
    TKE_RUN_ASLEEP = 0,
    TKE_RUN_WAITING,
    TKE_RUN_AWAKE,
    TKE_RUN_LEAVING,
    TKE_RUN_YIELDING
} tke_run_memory;

typedef enum tke_run_image {
    TKE_IMAGE_IDLE = 0,
    TKE_IMAGE_WANTED,
    TKE_IMAGE_WRITING,
    TKE_IMAGE_WRITING_AGAIN,
    TKE_IMAGE_FAILED
} tke_run_image;

typedef enum tke_run_event {
    TKE_ON_MADE = 0,
    TKE_ON_NOT_MADE,
    TKE_ON_UNLOAD_ASKED,
    TKE_ON_UNLOADED,
    TKE_ON_NO_ROOM,
    TKE_ON_ROOM_SETTLED, /* it no longer waits, whether it found room or failed */
    TKE_ON_LOADED,
    TKE_ON_ASKED_TO_SLEEP,
    TKE_ON_ASKED_TO_YIELD,
    TKE_ON_STAYS,
    TKE_ON_RELEASED,
    TKE_ON_IMAGE_ASKED,
    TKE_ON_IMAGE_DROPPED, /* it is no longer needed */
    TKE_ON_IMAGE_BEGUN,
    TKE_ON_IMAGE_WRITTEN,
    TKE_ON_IMAGE_LOST,
    TKE_ON_IMAGE_FORGIVEN, /* try again as if the last one had not failed */
    TKE_N_RUN_EVENTS
} tke_run_event;

typedef struct tke_run_states {
    tke_run_life life;
    tke_run_memory memory;
    tke_run_image image;
} tke_run_states;

/* Applies the event. False: it is impossible in this state (a bug of the caller); nothing has
 * changed. */
bool tke_run_move(tke_run_states *, tke_run_event);

/* The value for the column runs.state. */
int64_t tke_run_stored_life(tke_run_states);
/* The life for a value of that column; unknown values count as FAILED. */
tke_run_life tke_run_life_of_row(int64_t column);

static inline bool tke_run_is_unloaded(tke_run_states s)
{
    return s.life == TKE_RUN_UNLOADED || s.life == TKE_RUN_UNLOADING;
}

/* Has it been asked to release its memory? */
static inline bool tke_run_goes_to_sleep(tke_run_states s)
{
    return s.memory == TKE_RUN_LEAVING || s.memory == TKE_RUN_YIELDING;
}

static inline bool tke_run_image_is_written(tke_run_states s) /* at this moment */
{
    return s.image == TKE_IMAGE_WRITING || s.image == TKE_IMAGE_WRITING_AGAIN;
}

static inline bool tke_run_image_is_wanted(tke_run_states s)
{
    return s.image == TKE_IMAGE_WANTED || s.image == TKE_IMAGE_WRITING_AGAIN;
}

#endif
