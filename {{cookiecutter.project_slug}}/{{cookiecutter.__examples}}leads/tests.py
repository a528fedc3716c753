"""The lead form: what the page does, and that the team is told at least once, whatever happens."""

import time
from datetime import timedelta

import pytest
import redis
from celery.exceptions import Retry
from django.db import DatabaseError, transaction
from django.urls import reverse
from django.utils import timezone

from leads import services
from leads.models import Lead
from leads.tasks import alert_new_lead, publish_overdue_alerts
from service.mail import MailNotSent

pytestmark = pytest.mark.django_db(transaction=True)

URL = reverse("leads:contact")
ZOE = {"name": "Zoë", "email": "zoe@example.org", "message": "Call me.\n\nZoë"}


def stored(**fields) -> Lead:
    return Lead.objects.create(**{**ZOE, **fields})


def overdue() -> Lead:
    return stored(alert_due_at=timezone.now() - timedelta(seconds=1))


class TestPage:
    """The form, and what it stores and publishes."""

    def test_shows_labels_for_all_fields(self, client):
        page = client.get(URL).content.decode()
        assert all(f'<label for="id_{field}">' in page for field in ("name", "email", "message"))

    def test_stores_publishes_and_redirects(self, client, waiting):
        response = client.post(URL, ZOE)
        assert (response.status_code, response.url) == (302, reverse("leads:thanks"))
        assert client.get(response.url).status_code == 200
        assert Lead.objects.get().alert_due_at > timezone.now()
        assert waiting("email") == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"name": "Zoë\nBcc: c@d.example"},
            {"email": "nobody"},
            {"email": "a@b.example\nBcc: c@d.example"},
            {"message": ""},
            {"message": " \n "},
            {"message": "m" * 5001},
            {"message": "\x00"},
        ],
    )
    def test_refuses(self, client, waiting, wrong):
        response = client.post(URL, {**ZOE, **wrong})
        assert response.status_code == 200
        assert 'class="errorlist"' in response.content.decode()
        assert not Lead.objects.exists()
        assert not waiting("email")

    def test_wants_a_csrf_token(self, client):
        client.handler.enforce_csrf_checks = True
        assert client.post(URL, ZOE).status_code == 403


class TestPublishing:
    """After the commit, and again by the sweep until it is confirmed."""

    def test_nothing_before_the_commit(self, waiting):
        with transaction.atomic():
            services.register(Lead(**ZOE))
            assert not waiting("email")
        assert waiting("email") == 1

    def test_broker_down_then_back(self, client, broker, deliver):
        broker.stop()
        begun = time.monotonic()
        assert client.post(URL, ZOE).status_code == 302
        assert time.monotonic() - begun < 3
        broker.start()
        assert deliver(publish_overdue_alerts) == 1
        assert redis.Redis("127.0.0.1", port=broker.port).llen("email") == 1

    def test_broker_paused(self, client, broker):
        client.get(URL)
        redis.Redis("127.0.0.1", port=broker.port).client_pause(60_000)
        begun = time.monotonic()
        assert client.post(URL, ZOE).status_code == 302
        assert time.monotonic() - begun < 3
        assert Lead.objects.get().alert_due_at <= timezone.now()

    def test_sweep_publishes_what_was_not_confirmed(self, deliver, waiting):
        lead = overdue()
        stored(alert_due_at=timezone.now() + timedelta(minutes=1))
        stored(alert_confirmed_at=timezone.now())
        assert deliver(publish_overdue_alerts) == 1
        assert deliver(publish_overdue_alerts) == 0
        assert waiting("email") == 1
        lead.refresh_from_db()
        assert lead.alert_due_at > timezone.now()  # it comes up again, unless it is confirmed by then

    def test_two_sweeps_at_once_publish_once(self, monkeypatch):
        overdue()
        published = []

        def publish(task, *args):
            published.append(args)
            if len(published) == 1:
                services.publish_overdue_alerts()  # a second sweep, while the first is at it
            return True

        monkeypatch.setattr(services, "publish", publish)
        services.publish_overdue_alerts()
        assert len(published) == 1

    def test_sweep_that_read_the_row_before_another_claimed_it_leaves_it(self, monkeypatch, waiting):
        overdue()
        claims = []
        update = type(Lead.objects.all()).update

        def other_sweep_first(rows, **values):
            if not claims:
                claims.append(1)
                services.publish_overdue_alerts()
            return update(rows, **values)

        monkeypatch.setattr(type(Lead.objects.all()), "update", other_sweep_first)
        assert services.publish_overdue_alerts() == 0
        assert waiting("email") == 1

    def test_sweep_gives_up_at_once_without_a_broker(self, no_broker, deliver, caplog):
        for _ in range(5):
            overdue()
        assert deliver(publish_overdue_alerts) == 0
        assert caplog.text.count("was not published") == 1
        assert Lead.objects.filter(alert_due_at__lte=timezone.now()).count() == 5


class TestDelivery:
    """The task: at least once."""

    def test_tells_the_team_and_confirms(self, deliver, mailbox, settings):
        lead = overdue()
        assert deliver(alert_new_lead, str(lead.pk)) == "sent"
        [mail] = mailbox.mails()
        assert (mail["to"], mail["subject"]) == (settings.TEAM_EMAIL, "New lead: Zoë")
        assert "Call me." in mail["text"]
        lead.refresh_from_db()
        assert lead.alert_confirmed_at and lead.alert_due_at is None

    def test_second_delivery_tells_again_and_never_looks_at_the_confirmation(self, deliver, mailbox):
        lead = stored(alert_confirmed_at=timezone.now())
        for redelivered in (False, True):
            assert deliver(alert_new_lead, str(lead.pk), redelivered=redelivered) == "sent"
        assert len(mailbox.mails()) == 2

    @pytest.mark.parametrize("trouble", ["554 spam", "drop"])
    def test_not_sent_and_unknown_are_retried_and_not_confirmed(self, deliver, mailbox, waiting, trouble):
        lead = overdue()
        mailbox.behave(data=trouble)
        assert isinstance(deliver(alert_new_lead, str(lead.pk)), Retry)
        assert waiting("email") == 1
        lead.refresh_from_db()
        assert lead.alert_confirmed_at is None and lead.alert_due_at

    def test_when_retries_are_used_up_the_sweep_goes_on(self, deliver, mailbox, waiting):
        lead = overdue()
        mailbox.behave(data="554 spam")
        result = deliver(alert_new_lead, str(lead.pk), retries=alert_new_lead.max_retries)
        assert isinstance(result, MailNotSent)
        assert not waiting("email")
        assert deliver(publish_overdue_alerts) == 1

    def test_confirmation_that_cannot_be_written_leaves_the_lead_to_the_sweep(
        self, deliver, mailbox, monkeypatch
    ):
        lead = overdue()

        def refuse(lead):
            raise DatabaseError("disk full")

        monkeypatch.setattr(services, "confirm_alert", refuse)
        assert isinstance(deliver(alert_new_lead, str(lead.pk)), DatabaseError)
        assert deliver(publish_overdue_alerts) == 1

    def test_missing_lead_is_logged(self, deliver, mailbox, waiting, caplog):
        assert deliver(alert_new_lead, str(Lead().pk)) == "no such lead"
        assert "nobody told" in caplog.text
        assert not waiting("email") and not mailbox.mails()

    def test_name_that_came_in_past_the_form_cannot_add_headers(self, deliver, mailbox):
        lead = stored(name="Zoë\r\nBcc: c@d.example")
        assert isinstance(deliver(alert_new_lead, str(lead.pk)), Retry)
        assert not mailbox.mails()


def test_admin_shows_leads(admin_client):
    lead = stored()
    listed = admin_client.get(reverse("admin:leads_lead_changelist"))
    assert lead.email in listed.content.decode()
    shown = admin_client.get(reverse("admin:leads_lead_change", args=[lead.pk]))
    assert "Call me." in shown.content.decode()
