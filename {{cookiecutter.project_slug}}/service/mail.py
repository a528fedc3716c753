"""Send one mail and tell, honestly, what became of it."""

import enum
import logging

from django.core.mail import EmailMessage
from django.core.mail.backends.smtp import EmailBackend as SmtpBackend

logger = logging.getLogger(__name__)

QUIT_TIMEOUT_S = 1


class Outcome(enum.Enum):
    """What became of a mail. Only SENT is true."""

    SENT = "sent"
    """The server said that it took the mail."""
    NOT_SENT = "not sent"
    """Provably not accepted: sending again cannot make a second mail."""
    UNKNOWN = "unknown"
    """Perhaps accepted: sending again may make a second mail."""

    def __bool__(self) -> bool:
        return self is Outcome.SENT


class MailNotSent(Exception):
    """A mail did not go out; says which. What a task fails with when its retries are used up."""


def deliver(message: EmailMessage) -> Outcome:
    """Send a mail to its one recipient through Django's e-mail backend; every error becomes an outcome.

    Connecting is a step of its own, so that what fails there (DNS, refused, TLS, login) is known to be before
    the mail.
    """
    try:
        message.message()  # refuses a header with a line break before anybody is bothered
        connection = message.get_connection()
        connection.open()
    except Exception as error:
        return _failed(message, Outcome.NOT_SENT, error)
    handover = Handover(connection)
    try:
        outcome = Outcome.SENT if connection.send_messages([message]) else Outcome.NOT_SENT
    except Exception as error:
        outcome = _failed(message, Outcome.NOT_SENT if handover.refused(error) else Outcome.UNKNOWN, error)
    _hang_up(connection)
    return outcome


class Handover:
    """Watches an open connection for the moment at which the mail itself goes out.

    In SMTP that is the DATA command. What fails before it was not accepted. After it, only an answer of the
    server is proof: aiosmtpd, measured, has stored the mail when the connection drops or its answer comes
    after the timeout.
    """

    def __init__(self, connection):
        self.begun = not isinstance(connection, SmtpBackend)
        """Whether the mail may be on its way. Of backends other than SMTP nothing is known, so always."""
        if not self.begun:
            self._data = connection.connection.data
            connection.connection.data = self._hand_over

    def _hand_over(self, mail):
        self.begun = True
        return self._data(mail)

    def refused(self, error: Exception) -> bool:
        """Tell whether an error proves that the mail was not accepted."""
        return not self.begun or 400 <= getattr(error, "smtp_code", 0) < 600


def _failed(message: EmailMessage, outcome: Outcome, error: Exception) -> Outcome:
    """Log why a mail has this outcome, and return the outcome."""
    message_id = message.extra_headers.get("Message-ID", "without Message-ID")
    if outcome is Outcome.UNKNOWN:
        logger.error(
            "mail %s: unknown, the server may have it: %s: %s", message_id, type(error).__name__, error
        )
    else:
        logger.warning("mail %s: not sent: %s: %s", message_id, type(error).__name__, error)
    return outcome


def _hang_up(connection) -> None:
    """End the connection.

    The mail's fate is settled: no error here changes it, and a slow goodbye is cut short.
    """
    try:
        if sock := getattr(getattr(connection, "connection", None), "sock", None):
            sock.settimeout(QUIT_TIMEOUT_S)
        connection.close()
    except Exception as error:
        logger.debug("the mail server did not say goodbye: %s", error)
