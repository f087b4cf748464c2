"""The server's record of a Celery task, by the task's id."""

import pytest

from django_rlock._redis import scripts

KEPT = 60_000


def test_nothing_is_known_of_a_new_task(run):
    assert run(scripts.TASK_READ, 0) == [-2, "", 0]


def test_a_success_is_remembered_for_its_time(run):
    assert run(scripts.TASK_DONE, "0", KEPT) == 1
    left, copy, stored = run(scripts.TASK_READ, 0)
    assert (KEPT - 10_000 < left <= KEPT, copy, stored) == (True, "", 0)


def test_a_late_copy_of_a_success_does_not_forget_that_the_rest_is_done(run):
    assert run(scripts.TASK_DONE, "0.1", KEPT) == 1
    assert run(scripts.TASK_FINISH, KEPT, "+0.1") == 1
    assert run(scripts.TASK_DONE, "0.1", KEPT) == 1
    assert run(scripts.TASK_READ, 0)[2] == 1


def test_many_tasks_are_done_by_one_command(redis_client):
    names = ["rlock_done:{rlock:1}", "rlock_done:{rlock:2}", "rlock_done:{rlock:3}"]
    redis_client.set(names[2], "+1.7")
    values = ["+0.1", "+2.2", "+0.3"]
    assert redis_client.eval(scripts.TASK_FINISH.source, 3, *names, "nonce", KEPT, *values) == ["nonce", 1, 1, 1]
    assert redis_client.mget(names) == ["+0.1", "+2.2", "+1.7"]
    assert KEPT - 10_000 < redis_client.pttl(names[0]) <= KEPT


def test_a_success_does_not_settle_the_retries_that_come_after_it(run):
    for value in ("1", "+1"):
        run(scripts.TASK_DONE, value, KEPT)
        assert [run(scripts.TASK_READ, retries)[0] > 0 for retries in (0, 1, 2)] == [True, True, False]


def test_a_late_copy_of_a_success_leaves_that_of_a_retry(run):
    for value in ("1", "+0"):
        run(scripts.TASK_DONE, value, KEPT)
    left, _, stored = run(scripts.TASK_READ, 1)
    assert left > 0
    assert not stored


def test_a_success_is_forgotten_without_that_of_another_run(run):
    run(scripts.TASK_DONE, "0.1", KEPT)
    run(scripts.TASK_DONE, "0.2", 0)
    assert run(scripts.TASK_READ, 0)[0] > 0
    run(scripts.TASK_DONE, "0.1", 0)
    assert run(scripts.TASK_READ, 0) == [-2, "", 0]


@pytest.mark.parametrize(("known", "new"), [("+0", "0.1"), ("0.1", "+0"), ("+0.1", "0.2"), ("0", "+0.1")])
def test_successes_of_this_version_and_the_last_are_in_one_order(run, known, new):
    for value in (known, new):
        run(scripts.TASK_DONE, value, KEPT)
    assert run(scripts.TASK_READ, 0)[2] == 1


def test_a_success_that_an_earlier_version_recorded_settles_all_retries(run, redis_client):
    redis_client.set("rlock_done:{rlock:id}", "+id", px=KEPT)
    left, _, stored = run(scripts.TASK_READ, 3)
    assert left > 0
    assert stored


def test_a_copy_takes_the_place_of_the_one_that_it_comes_after(run):
    assert run(scripts.TASK_EXPECT, "0:a", "", KEPT) == 1
    assert run(scripts.TASK_EXPECT, "0:b", "0:a", KEPT) == 1
    assert run(scripts.TASK_READ, 0) == [-2, "0:b", 0]


def test_it_takes_no_others_place(run):
    run(scripts.TASK_EXPECT, "0:b", "", KEPT)
    assert run(scripts.TASK_EXPECT, "0:c", "", KEPT) == 0
    assert run(scripts.TASK_EXPECT, "0:c", "0:a", KEPT) == 0
    assert run(scripts.TASK_READ, 0) == [-2, "0:b", 0]


def test_it_may_be_noted_twice(run):
    for _ in range(2):
        assert run(scripts.TASK_EXPECT, "0:a", "", KEPT) == 1
    assert run(scripts.TASK_READ, 0) == [-2, "0:a", 0]
