"""The generated tests are worth something: each mutation of a generated service turns a named one of them red."""

import subprocess
from dataclasses import dataclass

import pytest

GENERATED = "tests/redelivery/test_generated.py"
GUARDS = "tests/redelivery/test_guards.py"
KILLS = "tests/kills/test_workers.py"
BROKER_AWAY = "tests/policy/test_broker_away.py"
WELCOME = "onboarding.tasks.send_welcome_email"
TASKS = "onboarding/tasks.py"
SENDING = "payments/tests/test_sending.py"
LEASES = "tests/broker/test_leases.py"
MESSAGES = "tests/broker/test_messages.py"
RECONCILIATION = "payments/tests/test_reconciliation.py"


@dataclass(frozen=True)
class Mutation:
    """A change of one or more files, the test that must fail because of it, and what it must say."""

    name: str
    changes: tuple[tuple[str, str, str], ...]
    test: str
    says: str


MARKER_AFTER = """    outcome = services.send_welcome(submission)
    if outcome is Outcome.SENT:
        marker.set()
"""
MARKER_BEFORE = """    marker.set()
    outcome = services.send_welcome(submission)
    if outcome is Outcome.SENT:
        pass
"""
ONE_LINE = """    if (outcome := services.send_welcome(submission)) is Outcome.SENT: marker.set()
    elif outcome is Outcome.SENT:
        pass
"""
KILLED_GAP = """["killed after the send and before the marker: sent twice",
                "two"""

MUTATIONS = [
    Mutation(
        "the marker write is dropped",
        ((TASKS, "        marker.set()\n", "        pass\n"),),
        f"{GENERATED}::test_whole_run_delivered_again[{WELCOME}]",
        "whole run: 2 effects",
    ),
    Mutation(
        "the marker is written before the send",
        ((TASKS, MARKER_AFTER, MARKER_BEFORE),),
        f"{GENERATED}::test_crash_map_equals_declared_gaps[{WELCOME}]",
        "0 effects",
    ),
    Mutation(
        "send and marker on one line, and the gap between them not declared",
        ((TASKS, MARKER_AFTER, ONE_LINE), ("ack_policy.toml", KILLED_GAP, '["two')),
        f"{GENERATED}::test_crash_map_equals_declared_gaps[{WELCOME}]",
        "2 effects",
    ),
    Mutation(
        "a gap is declared that is not there",
        (
            (
                "tests/redelivery/guards/ack_policy.toml",
                'guard        = "transaction"\ntime_limit_s = 30\nreason       = "An upsert',
                'guard        = "marker"\ngaps = ["killed between two lines: written twice"]\n'
                'time_limit_s = 30\nreason       = "An upsert',
            ),
        ),
        f"{GUARDS}::test_declared_equals_measured[tests.redelivery.guards.tasks.store_rate-killed]",
        "none was seen",
    ),
    Mutation(
        "the marker's key is the task id",
        ((TASKS, "Marker(self.name, submission_id)", "Marker(self.name, self.request.id)"),),
        f"{GENERATED}::test_delivered_twice[second_message-{WELCOME}]",
        "second_message: 2 effects",
    ),
    Mutation(
        "late acknowledgement is taken away",
        (("redelivery/policy.py", '"acks_late": late,', '"acks_late": False,'),),
        f"{GENERATED}::test_real_kill[{WELCOME}-SIGKILL of the group]",
        "'runs': 1",
    ),
    Mutation(
        "reject_on_worker_lost is taken away",
        (("redelivery/policy.py", '"reject_on_worker_lost": late,', '"reject_on_worker_lost": False,'),),
        f"{GENERATED}::test_real_kill[{WELCOME}-SIGKILL of the pool child]",
        "'runs': 1",
    ),
    Mutation(
        "a retry that cannot be published is left to Celery",
        (("redelivery/force.py", '            around["retry"] = retry.around\n', "            pass\n"),),
        f"{BROKER_AWAY}::test_retry_that_cannot_be_published_gives_the_message_back[automatic]",
        "waited 30 s in vain",
    ),
    Mutation(
        "a message that cannot be settled keeps its place in the worker",
        (
            (
                "redelivery/settle.py",
                "            virtual.QoS.ack(held, delivery_tag)\n",
                "            pass\n",
            ),
        ),
        f"{BROKER_AWAY}::test_worker_goes_on_when_a_message_cannot_be_settled[acknowledged, paused]",
        "waited 30 s in vain",
    ),
    Mutation(
        "what killed a task is not noted",
        (
            (
                "redelivery/request.py",
                "            ours.note_cause(self.message.delivery_tag, cause)\n",
                "            pass\n",
            ),
        ),
        f"{KILLS}::test_sigkill_of_a_child",
        "in vain for the records",
    ),
    Mutation(
        "crashes are counted, and nothing is parked",
        (("redelivery/kills.py", "    if count <= retries:\n", "    if count:\n"),),
        f"{KILLS}::test_replayed_poison_may_crash_as_often_again",
        "in vain for it to be parked",
    ),
    Mutation(
        "a message is registered after it was popped, in a step of its own",
        (
            (
                "redelivery/broker/take.lua",
                "    redis.call('HSET', unacked, tag, '[' .. raw .. ', ' .. exchange .. ', ' .. routing_key .. ']')\n",
                "",
            ),
            (
                "redelivery/broker/holder.py",
                "        channel._queue_cycle.rotate(queue)\n",
                "        channel._queue_cycle.rotate(queue)\n"
                '        self.client.hset("unacked", tag, b"[%s, null, null]" % text)\n',
            ),
        ),
        f"{MESSAGES}::test_message_is_registered_in_the_step_that_takes_it",
        "assert None == b",
    ),
    Mutation(
        "leases are not renewed during a drain",
        (
            (
                "redelivery/broker/lease.py",
                "due = holder.draining or ",
                "due = not holder.draining and ",
            ),
        ),
        f"{LEASES}::test_healthy_task_starts_once",
        "] == [1",
    ),
    Mutation(
        "what is given back may have another lease by now",
        (
            (
                "redelivery/broker/give_back.lua",
                "if seen ~= (leased(tag) or redis.call('ZSCORE', index, tag)) then return 0 end\n",
                "",
            ),
        ),
        f"{LEASES}::test_lease_that_changed_is_not_given_back",
        "assert 1 == 0",
    ),
    Mutation(
        "the claim loses its condition",
        (
            (
                "tests/redelivery/guards/tasks.py",
                'filter(pk=parcel_id, state="waiting")',
                "filter(pk=parcel_id)",
            ),
        ),
        f"{GUARDS}::test_declared_equals_measured[tests.redelivery.guards.tasks.announce_parcel-twins]",
        "twins: 2 effects",
    ),
    Mutation(
        "the natural key leaves the transaction",
        (("tests/redelivery/guards/tasks.py", "    with transaction.atomic():\n", "    if transaction:\n"),),
        f"{GUARDS}::test_declared_equals_measured[tests.redelivery.guards.tasks.credit-killed]",
        "0 effects",
    ),
    Mutation(
        "a task that acknowledges late has no case",
        (("leads/redelivery_case.py", 'task = "leads.tasks.alert_new_lead"', 'name = "nothing"'),),
        f"{GENERATED}::test_late_ack_task_has_a_case[leads.tasks.alert_new_lead]",
        "has no case",
    ),
    Mutation(
        "the claim of a payment loses its condition",
        (
            (
                "payments/models.py",
                "WHERE id = %s AND attempt = %s\n                AND (state = 'pending' OR",
                "WHERE id = %s AND %s IS NOT NULL\n                AND (TRUE OR",
            ),
        ),
        f"{SENDING}::TestOnce::test_of_two_that_read_the_same_row_one_claims",
        "(True, True)",
    ),
    Mutation(
        "the provider's key is drawn for each attempt",
        (
            (
                "payments/records.py",
                "str(self.provider_key), str(order.pk)",
                "str(uuid.uuid4()), str(order.pk)",
            ),
        ),
        f"{SENDING}::TestOnce::test_same_key_in_every_attempt",
        "assert [",
    ),
    Mutation(
        "a time-out is filed as rejected",
        (
            (
                "payments/providers/simulated.py",
                'return Unknown(f"{type(error).__name__}: {error}")',
                'return Rejected(f"{type(error).__name__}: {error}")',
            ),
        ),
        f"{SENDING}::TestEveryAnswer::test_state_charges_and_evidence[hang after]",
        "rejected",
    ),
    Mutation(
        "what is sending is reset by its age",
        (
            (
                "payments/reconciliation.py",
                "payment.move(State.UNCERTAIN, WHO, seen, due=pause(0))",
                "payment.move(State.PENDING, WHO, seen, due=pause(0)) or payment.claim()",
            ),
        ),
        f"{RECONCILIATION}::TestDeadWorkers::test_then_it_is_looked_into_never_reset",
        "assert",
    ),
    Mutation(
        "the fence is dropped",
        (
            (
                "payments/models.py",
                "WHERE id = %s AND state = %s AND attempt = %s",
                "WHERE id = %s AND %s <> '' AND %s IS NOT NULL",
            ),
        ),
        f"{SENDING}::TestLateAnswers::test_worker_that_was_overtaken_overwrites_nothing",
        "assert",
    ),
    Mutation(
        "an answer is lost with the connection to the database",
        (("payments/sending.py", "(SoftTimeLimitExceeded, DatabaseError)", "SoftTimeLimitExceeded"),),
        f"{SENDING}::TestNothingIsLost::test_database_that_goes_away_during_the_send",
        "OperationalError",
    ),
    Mutation(
        "redirects are followed",
        (("payments/providers/stripe.py", "session.max_redirects = 0", "session.max_redirects = 30"),),
        "payments/tests/test_strange_answers.py::test_proves_nothing[redirect-stripe]",
        "NotSent",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_turns_its_test_red(bake, service_venv, mutation):
    """The test that is named fails, and no error in the setup does; that it passes unmutated, `make test` shows."""
    service = bake()
    subprocess.run(["make", ".env", f"VENV={service_venv}"], cwd=service, check=True, capture_output=True)
    for file, before, after in mutation.changes:
        text = (service / file).read_text()
        assert text.count(before) == 1, f"{file} has changed: mend the mutation"
        (service / file).write_text(text.replace(before, after))
    red = subprocess.run(
        [service_venv / "bin" / "python", "-m", "pytest", "-q", mutation.test],
        cwd=service,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert red.returncode == 1 and f"FAILED {mutation.test}" in red.stdout, red.stdout
    assert mutation.says in red.stdout and "ERROR " not in red.stdout, red.stdout
