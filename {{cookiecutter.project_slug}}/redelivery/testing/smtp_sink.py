"""The SMTP sink's program: `python smtp_sink.py PORT MAILS_FILE EVENTS_FILE BEHAVIOUR_FILE`. See `servers.SmtpSink`."""

import asyncio
import email
import email.policy
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from aiosmtpd.controller import UnthreadedController
from aiosmtpd.smtp import SMTP


class Sink:
    """aiosmtpd's handler: stores mails, and does at each step what the behaviour file says."""

    def __init__(self, mails: Path, events: Path, behaviour: Path):
        self.mails, self.events, self.behaviour = mails, events, behaviour

    async def step(self, name: str, server: SMTP, recipients: list[str], usual: str) -> str:
        """Return the answer to give at this step, after what the behaviour file wants done."""
        to = ", ".join(recipients)
        wanted = json.loads(self.behaviour.read_text())
        action = wanted.get(name) if wanted["to"] in to else None
        if not action:
            return usual
        append(self.events, {"step": name, "action": action, "to": to})
        if action == "drop":
            server.transport.abort()
        elif action == "hold":
            while json.loads(self.behaviour.read_text()) == wanted:
                await asyncio.sleep(0.01)
        elif action.startswith("kill "):
            with suppress(ProcessLookupError):
                os.killpg(int(action.removeprefix("kill ")), signal.SIGKILL)
        elif action.startswith("sleep "):
            await asyncio.sleep(float(action.removeprefix("sleep ")))
        else:
            return action
        return usual

    async def handle_EHLO(self, server, session, envelope, hostname, responses):
        """Begin a session; step `ehlo`."""
        session.host_name = hostname
        session.last_recipients = []
        answer = await self.step("ehlo", server, [], "")
        return [answer] if answer else responses

    async def handle_MAIL(self, server, session, envelope, address, options):
        """Begin a mail; step `mail`."""
        envelope.mail_from = address
        return await self.step("mail", server, [], "250 OK")

    async def handle_RCPT(self, server, session, envelope, address, options):
        """Take a recipient, or not; step `rcpt`."""
        answer = await self.step("rcpt", server, [address], "250 OK")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server, session, envelope):
        """Store the mail, then answer; step `data`. A refusal (4xx, 5xx) stores nothing."""
        session.last_recipients = list(envelope.rcpt_tos)
        wanted = json.loads(self.behaviour.read_text())
        action = wanted.get("data", "") if wanted["to"] in ", ".join(envelope.rcpt_tos) else ""
        if not action[:1].isdigit():
            append(self.mails, as_record(envelope))
        return await self.step("data", server, envelope.rcpt_tos, "250 OK stored")

    async def handle_QUIT(self, server, session, envelope):
        """End the session; step `quit`: the mail is stored and acknowledged, the sender still waits."""
        return await self.step("quit", server, session.last_recipients, "221 Bye")


def as_record(envelope) -> dict:
    """Return what a test wants to know of a mail."""
    # The newer policy takes every header apart, which was a third of this program's time; only the subject needs it.
    message = email.message_from_bytes(envelope.content, policy=email.policy.compat32)
    plain = [part for part in message.walk() if part.get_content_type() == "text/plain"]
    texts = [
        part.get_payload(decode=True).decode(part.get_content_charset("utf-8"), "replace") for part in plain
    ]
    return {
        "to": ", ".join(envelope.rcpt_tos),
        "subject": email.policy.default.header_fetch_parse("Subject", message["Subject"] or ""),
        "message_id": message["Message-ID"],
        "text": (texts or [""])[0],
    }


def append(path: Path, record: dict) -> None:
    """Append a record as one line, in one write."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def main() -> None:
    """Serve until killed."""
    port, mails, events, behaviour = sys.argv[1:]
    loop = asyncio.new_event_loop()
    sink = Sink(Path(mails), Path(events), Path(behaviour))
    controller = UnthreadedController(sink, hostname="127.0.0.1", port=int(port), loop=loop)
    controller.begin()
    loop.run_forever()


if __name__ == "__main__":
    main()
