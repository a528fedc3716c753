"""With Kombu's own transport: what the main process sees is recorded, directly, and stock behaviour stays."""

import pytest

from redelivery.testing.servers import redis_server
from tests.kills.shop import Shop


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    with redis_server() as server:
        shop = Shop(tmp_path_factory.mktemp("shop"), server, transport=False)
        try:
            yield shop
        finally:
            shop.end()


KINDS = {
    # call: what is recorded, and how often it starts
    ("early", "kill_the_child"): ([("child killed by signal 9 (SIGKILL)", "acked", 1)], 1),
    ("work", "run_into_the_hard_limit"): ([("hard time limit", "acked", 1)], 1),
    ("patient", "exit_from_it_once"): ([("child exited with 3", "redelivered", 1)], 2),
    ("work", "end_at_the_soft_limit"): ([], 1),
    ("patient", "retry"): ([], 2),
    ("patient", "nothing"): ([], 1),
}


def test_what_the_main_process_sees_is_recorded_once(shop):
    with shop.worker():
        ids = dict(zip(KINDS, shop.publish(*KINDS), strict=True))
        wanted = sum(starts for _, starts in KINDS.values())
        shop.wait_for(lambda: shop.starts() == wanted and shop.quiet(), "all tasks to end")
    found = shop.kills("task_id", "cause", "outcome", "delivery", "worker", "release")
    for call, task_id in ids.items():
        records = [row[1:4] for row in found if row[0] == task_id]
        assert (records, shop.starts(task_id)) == KINDS[call], call
    assert {row[4:] for row in found} == {("w0@here", "r7")}
    assert shop.log().count("Hard time limit") == 1
