/* test_run_state.c - the states of a training run: which events are possible where, and what they
 * lead to. */
#include "service/worker/run_state.h"
#include "support/check.h"

static void expect(tke_run_states from, tke_run_event event, tke_run_states to)
{
    tke_run_states s = from;
    assert_true(tke_run_move(&s, event));
    assert_int_equal(s.life, to.life);
    assert_int_equal(s.memory, to.memory);
    assert_int_equal(s.image, to.image);
}

static void impossible(tke_run_states from, tke_run_event event)
{
    tke_run_states s = from;
    assert_false(tke_run_move(&s, event));
    assert_memory_equal(&s, &from, sizeof s);
}

#define LIFE(x)   ((tke_run_states){ .life = TKE_RUN_##x })
#define MEMORY(x) ((tke_run_states){ .memory = TKE_RUN_##x })
#define IMAGE(x)  ((tke_run_states){ .image = TKE_IMAGE_##x })

TEST(life_of_a_run)
{
    expect(LIFE(CREATING), TKE_ON_MADE, LIFE(READY));
    expect(LIFE(CREATING), TKE_ON_NOT_MADE, LIFE(FAILED));
    expect(LIFE(READY), TKE_ON_UNLOAD_ASKED, LIFE(UNLOADING));
    expect(LIFE(CREATING), TKE_ON_UNLOAD_ASKED, LIFE(UNLOADING));
    expect(LIFE(UNLOADING), TKE_ON_MADE, LIFE(UNLOADING));
    expect(LIFE(UNLOADING), TKE_ON_UNLOADED, LIFE(UNLOADED));
    expect(LIFE(FAILED), TKE_ON_UNLOAD_ASKED, LIFE(FAILED));
    impossible(LIFE(READY), TKE_ON_MADE);
    impossible(LIFE(READY), TKE_ON_UNLOADED);
    impossible(LIFE(UNLOADED), TKE_ON_UNLOAD_ASKED);
    impossible(LIFE(FAILED), TKE_ON_MADE);
}

TEST(weights_in_memory)
{
    expect(MEMORY(ASLEEP), TKE_ON_NO_ROOM, MEMORY(WAITING));
    expect(MEMORY(WAITING), TKE_ON_LOADED, MEMORY(AWAKE));
    expect(MEMORY(WAITING), TKE_ON_ROOM_SETTLED, MEMORY(ASLEEP));
    expect(MEMORY(AWAKE), TKE_ON_ASKED_TO_SLEEP, MEMORY(LEAVING));
    expect(MEMORY(AWAKE), TKE_ON_ASKED_TO_YIELD, MEMORY(YIELDING));
    expect(MEMORY(LEAVING), TKE_ON_STAYS, MEMORY(AWAKE));
    expect(MEMORY(YIELDING), TKE_ON_RELEASED, MEMORY(ASLEEP));
    impossible(MEMORY(ASLEEP), TKE_ON_RELEASED);
    impossible(MEMORY(AWAKE), TKE_ON_LOADED); /* two adapters for one run */
    impossible(MEMORY(AWAKE), TKE_ON_NO_ROOM);
    impossible(MEMORY(LEAVING), TKE_ON_ASKED_TO_YIELD);
    impossible(MEMORY(ASLEEP), TKE_ON_ASKED_TO_SLEEP);
}

TEST(images_on_disk)
{
    expect(IMAGE(IDLE), TKE_ON_IMAGE_ASKED, IMAGE(WANTED));
    expect(IMAGE(WANTED), TKE_ON_IMAGE_BEGUN, IMAGE(WRITING));
    expect(IMAGE(WRITING), TKE_ON_IMAGE_ASKED, IMAGE(WRITING_AGAIN));
    expect(IMAGE(WRITING), TKE_ON_IMAGE_WRITTEN, IMAGE(IDLE));
    expect(IMAGE(WRITING), TKE_ON_IMAGE_LOST, IMAGE(FAILED));
    /* A load that came while an image was written waits for the next, whatever became of this. */
    expect(IMAGE(WRITING_AGAIN), TKE_ON_IMAGE_WRITTEN, IMAGE(WANTED));
    expect(IMAGE(WRITING_AGAIN), TKE_ON_IMAGE_LOST, IMAGE(WANTED));
    expect(IMAGE(FAILED), TKE_ON_IMAGE_FORGIVEN, IMAGE(IDLE));
    expect(IMAGE(FAILED), TKE_ON_IMAGE_ASKED, IMAGE(WANTED));
    impossible(IMAGE(WRITING), TKE_ON_IMAGE_BEGUN); /* two images of one run at once */
    impossible(IMAGE(IDLE), TKE_ON_IMAGE_WRITTEN);
    impossible(IMAGE(IDLE), TKE_ON_IMAGE_FORGIVEN);
}

TEST(one_machine_moves_at_a_time)
{
    for (int e = 0; e < TKE_N_RUN_EVENTS; e++)
        for (int life = 0; life <= TKE_RUN_UNLOADING; life++)
            for (int memory = 0; memory <= TKE_RUN_YIELDING; memory++)
                for (int image = 0; image <= TKE_IMAGE_FAILED; image++) {
                    tke_run_states s = { (tke_run_life)life, (tke_run_memory)memory, (tke_run_image)image };
                    (void)tke_run_move(&s, (tke_run_event)e);
                    int moved = ((int)s.life != life) + ((int)s.memory != memory) + ((int)s.image != image);
                    assert_true(moved <= 1);
                }
}

TEST(a_run_has_the_state_of_its_row)
{
    assert_int_equal(tke_run_stored_life(LIFE(UNLOADING)), 1); /* a restart forgets the request */
    assert_int_equal(tke_run_stored_life(LIFE(FAILED)), 3);
    assert_int_equal(tke_run_life_of_row(2), TKE_RUN_UNLOADED);
    assert_int_equal(tke_run_life_of_row(4), TKE_RUN_FAILED); /* never stored */
    assert_int_equal(tke_run_life_of_row(-1), TKE_RUN_FAILED);
}
