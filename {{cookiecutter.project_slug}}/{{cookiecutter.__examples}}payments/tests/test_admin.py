"""The operator's page, in a real browser: evidence is asked for, kept, and of two operators the slower one is told."""

import os
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models.functions import Now
from django.urls import reverse

from payments.models import Payment, State
from payments.records import Evidence
from payments.tests.browser import browser, chromium

pytestmark = pytest.mark.django_db(transaction=True)

CHANGELIST = "/admin/payments/payment/"
SEEN = "Dashboard, Payments, searched for the order: one charge."


def operator(name: str, *permissions: str) -> User:
    user = User.objects.create_user(name, password="correct horse", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(codename__in=["view_payment", "view_evidence", *permissions])
    )
    return user


ALL = ("read_back", "record_charged", "record_not_charged")


@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
class TestInABrowser:
    """Clicks and keys, through the whole page."""

    @pytest.fixture(scope="class")
    def chromium(self):
        with browser() as running:
            yield running

    @pytest.fixture
    def logged_in(self, chromium, live_server):
        def log_in(name: str):
            window = chromium.window()
            window.open(f"{live_server.url}/admin/login/?next={CHANGELIST}")
            window.type("#id_username", name)
            window.type("#id_password", "correct horse")
            window.click("input[type=submit]", loads=True)
            window.wait_for_text("Select payment to ")
            return window

        return log_in

    def begin(self, window, action: str) -> None:
        window.click("input.action-select")
        window.choose("select[name=action]", action)
        window.click("button[name=index]", loads=True)

    def submit(self, window, seen: str = SEEN, reference: str = "ch_77") -> None:
        window.type("#id_seen", seen)
        window.type("#id_reference", reference)
        window.click("#evidence input[type=submit]", loads=True)

    def test_two_operators_one_wins_and_the_other_is_told(self, provider, uncertain, logged_in, waiting):
        for name in ("ada", "grace"):
            operator(name, *ALL)
        ada, grace = logged_in("ada"), logged_in("grace")
        assert "Uncertain" in ada.text("#result_list")
        self.begin(ada, "record_as_charged")
        self.begin(grace, "record_as_not_charged")
        self.submit(ada)
        ada.wait_for_text("Recorded: ")
        self.submit(grace, "Searched the dashboard, there is no charge.", "search of today")
        grace.wait_for_text("Nothing was recorded: ")
        assert "operator ada" in grace.text(".messagelist")
        payment = Payment.objects.get()
        assert (payment.state, payment.reference, waiting("payments")) == (State.SENT, "ch_77", 0)
        last = Evidence.objects.latest("pk")
        assert (last.who.startswith("operator ada"), last.seen, last.before) == (True, SEEN, State.UNCERTAIN)

    def test_without_evidence_nothing_happens(self, provider, uncertain, logged_in):
        operator("ada", *ALL)
        window = logged_in("ada")
        self.begin(window, "record_as_charged")
        window.click("#evidence input[type=submit]")  # the browser itself refuses empty fields
        window.type("#id_seen", "      too      ")
        window.type("#id_reference", "x")
        window.click("#evidence input[type=submit]", loads=True)
        assert "at least 10 characters" in window.text(".errorlist")
        assert Payment.objects.get().state == State.UNCERTAIN

    def test_not_charged_is_sent_again(self, provider, uncertain, logged_in, waiting):
        operator("ada", *ALL)
        window = logged_in("ada")
        self.begin(window, "record_as_not_charged")
        if folder := os.environ.get("SCREENSHOTS"):
            window.type("#id_seen", "Dashboard, searched for the key and the order: no payment.")
            window.screenshot(Path(folder) / "operator.png")
            window.js("document.querySelector('#id_seen').value = ''")
        self.submit(window)
        window.wait_for_text("Recorded: ")
        assert Payment.objects.get().state == State.PENDING and waiting("payments") == 1

    def test_read_back_now(self, provider, uncertain, logged_in):
        operator("ada", *ALL)
        window = logged_in("ada")
        self.begin(window, "read_back_now")
        window.wait_for_text("uncertain after it was read back")
        assert "NotFound" in window.text(
            "#result_list"
        )  # no proof for a person's question: it may be under way


class TestPermissions:
    """Each action has one of its own."""

    @pytest.mark.parametrize("permission", ALL)
    def test_only_the_permitted_action_is_offered(self, client, uncertain, permission):
        client.force_login(operator("ada", permission))
        page = client.get(CHANGELIST).content.decode()
        offered = {
            "read_back": "read_back_now",
            "record_charged": "record_as_charged",
            "record_not_charged": "record_as_not_charged",
        }
        for name, action in offered.items():
            assert (f'value="{action}"' in page) == (name == permission)

    @pytest.mark.parametrize("action", ["record_as_charged", "record_as_not_charged"])
    def test_posting_without_permission_records_nothing(self, client, uncertain, action):
        client.force_login(operator("ada"))
        data = {"action": action, "_selected_action": [uncertain.pk], "seen": SEEN, "reference": "x"}
        client.post(CHANGELIST, data | {"state": "uncertain", "attempt": 1})
        assert Payment.objects.get().state == State.UNCERTAIN

    @pytest.mark.parametrize("state", [State.PENDING, State.SENDING, State.SENT])
    def test_what_is_not_in_doubt_is_not_settled_by_hand(self, client, payment, state):
        Payment.objects.update(state=state, settled_at=Now() if state == State.SENT else None)
        client.force_login(operator("ada", *ALL))
        data = {
            "action": "record_as_charged",
            "_selected_action": [payment.pk],
            "seen": SEEN,
            "reference": "x",
        }
        page = client.post(CHANGELIST, data | {"state": state, "attempt": 0}, follow=True)
        assert "Nothing was recorded" in page.content.decode()
        assert (Payment.objects.get().state, Evidence.objects.count()) == (state, 0)

    def test_contradiction_ends_with_evidence(self, client, uncertain):
        uncertain.move(State.SENT, "worker", "200", "ch_1")
        Payment.objects.update(contradicted=True)
        client.force_login(operator("ada", *ALL))
        data = {
            "action": "record_as_charged",
            "_selected_action": [uncertain.pk],
            "seen": SEEN,
            "reference": "ch_1",
        }
        client.post(CHANGELIST, data | {"state": State.SENT, "attempt": 1})
        assert not Payment.objects.get().contradicted

    def test_nobody_adds_changes_or_deletes(self, admin_client, uncertain):
        for url in ("add/", f"{uncertain.pk}/delete/"):
            assert admin_client.get(f"{CHANGELIST}{url}").status_code == 403
        for model in ("order", "halt"):
            assert admin_client.get(reverse(f"admin:payments_{model}_changelist")).status_code == 200
        page = admin_client.get(f"{CHANGELIST}{uncertain.pk}/change/")
        assert page.status_code == 200 and 'name="_save"' not in page.content.decode()
        assert "Unknown: timed out" in page.content.decode()
