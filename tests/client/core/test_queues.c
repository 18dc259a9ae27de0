/* test_queues.c - completion in a loop of the program's own: who is called, how often, and what may be freed inside. */
#include "support/client/client_scene.h"

typedef struct listener {
    scene *s;
    tinkc_future *free_it;
    tinkc_queue *queue;
    const char *name;
} listener;

static void on_done(tinkc_future *f, void *user)
{
    listener *t = user;
    note(t->s, "%s: %s is done", t->name, tinkc_future_operation(f));
    if (t->free_it)
        tinkc_future_free(t->free_it);
    t->free_it = NULL;
    tinkc_error e = { 0 };
    if (t->queue) {
        (void)tinkc_queue_run(t->queue, 0, &e);
        note(t->s, "inside: %s", e.message);
    }
}

static void on_any_event(const tinkc_event *e, void *user)
{
    listener *t = user;
    note(t->s, "%s: event %u, %s", t->name, (unsigned)e->kind, e->operation);
}

TEST(a_queue_delivers_what_it_was_given_and_wakes_its_descriptor)
{
    scene *s = scene_new(TINKC_MOCK_SERVICE, NULL);
    tinkc_error *e = scene_err(s);
    tinkc_client *c = scene_client(s);
    tinkc_queue *q = tinkc_queue_new(c, e), *other = tinkc_queue_new(c, e);
    listener a = { .s = s, .name = "a" }, b = { .s = s, .name = "b" };
    note(s, "a descriptor: %d", tinkc_queue_fd(q) > 2);
    tinkc_future *f = follow(s, "f", tinkc_health_check(c, e));
    tinkc_future_on_done(f, q, on_done, &a, e);
    tinkc_future_on_done(f, other, on_done, &b, e); /* replaces it */
    note(s, "%zu and %zu", tinkc_queue_run(q, 0, e), tinkc_queue_run(other, 0, e));
    note(s, "%zu and %zu", tinkc_queue_run(q, 0, e), tinkc_queue_run(other, 0, e));
    tinkc_future_on_done(f, q, on_done, &a, e); /* it has run: another may come */
    tinkc_future_on_done(f, q, NULL, NULL, e);
    note(s, "taken away: %zu", tinkc_queue_run(q, 0, e));
    b.queue = q;
    tinkc_future_on_done(f, q, on_done, &b, e);
    note(s, "inside its own: %zu", tinkc_queue_run(q, 0, e));
    b.queue = NULL;
    EXPECT(s, "a descriptor: 1; client/config; healthz; f: done; b: health_check is done; 0 and 1; "
              "0 and 0; taken away: 0; b: health_check is done; inside: queue: is being run "
              "already, around this very call; inside its own: 1");
    assert_true(tinkc_mock_once(scene_mock(s), NULL, API "healthz", &(tinkc_mock_answer){ .delay_ms = 5 }, e));
    tinkc_future *late = tinkc_health_check(c, e);
    a.free_it = late;
    tinkc_future_on_done(late, q, on_done, &a, e);
    tinkc_future_on_event(late, q, TINKC_EVENT_EXCHANGE, on_any_event, &b, e);
    settle(s);
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    pass(s, 5);
    note(s, "%zu calls", tinkc_queue_run(q, 0, e));
    settle(s);
    EXPECT(s, "healthz; 0 calls; +5 b: event 1, health_check; a: health_check is done; 2 calls");
    for (int i = 0; i < 4; i++) {
        tinkc_mock_answer busy = { .status = 503, .headers = PAIRS("Retry-After-Ms", "1"), .delay_ms = 5 };
        assert_true(tinkc_mock_once(scene_mock(s), NULL, API "healthz", &busy, e));
        tinkc_future *g = tinkc_health_check(c, e);
        tinkc_future_on_event(g, q, i == 0 ? TINKC_EVENT_RETRY : UINT32_MAX, on_any_event, &a, e);
        if (i == 2)
            tinkc_future_on_event(g, other, UINT32_MAX, on_any_event, &b, e);
        if (i == 3)
            tinkc_future_on_event(g, q, 0, on_any_event, &a, e);
        settle(s);
        pass(s, 5);
        pass(s, 1);
        note(s, "%d", tinkc_future_done(g));
        tinkc_queue_run(other, 0, e);
        tinkc_queue_run(q, 0, e);
        tinkc_future_free(g);
    }
    EXPECT(s, "healthz; +6 healthz (1); 1; a: event 2, health_check; healthz; +6 healthz (1); 1; "
              "a: event 1, health_check; a: event 2, health_check; a: event 1, health_check; "
              "healthz; +6 healthz (1); 1; b: event 1, health_check; b: event 2, health_check; b: "
              "event 1, health_check; healthz; +6 healthz (1); 1");
    tinkc_queue_wake(q);
    note(s, "woken: %zu", tinkc_queue_run(q, 1, e));
    tinkc_queue_wake(NULL);
    tinkc_future *const three[] = { NULL, f, NULL };
    size_t first = tinkc_future_wait_any(three, 3, 0, e);
    size_t none = tinkc_future_wait_any(three, 1, 0, e);
    note(s, "any: %zu, %zu", first, none);
    note(s, "%s", e->message);
    *e = (tinkc_error){ 0 };
    note(s, "all: %d", tinkc_future_wait_all(three, 3, 0, e));
    EXPECT(s, "woken: 0; any: 1, 1; all: no future among them; all: 1");
    tinkc_queue_free(other);
    tinkc_queue_free(q);
    scene_end(s);
}
