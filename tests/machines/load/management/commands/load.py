"""Publish messages at a steady rate: `manage.py load --short 20 --long 0.2 --seconds 60`. Prints one line of JSON."""

import json
import random
import time

from django.core.management import BaseCommand

from load import tasks
from load.models import Sent


class Command(BaseCommand):
    """Rates are messages a second; a `long` task takes up to `--longest` seconds."""

    def add_arguments(self, parser):
        """Declare the arguments."""
        parser.add_argument("--short", type=float, default=0)
        parser.add_argument("--long", type=float, default=0)
        parser.add_argument("--longest", type=float, default=60)
        parser.add_argument("--seconds", type=float, default=0)
        parser.add_argument("--one", type=float, help="publish one task of so many seconds, and nothing else")
        parser.add_argument(
            "--queue", default="long", choices=["short", "medium", "long"], help="of that one task"
        )
        parser.add_argument("--hog", type=int, help="publish one task that takes so many megabytes")
        parser.add_argument("--first", type=int, default=0, help="the number of the first message")

    def handle(self, *args, **options):
        """Publish, and note each message that the broker took."""
        self.number = options["first"] or int(time.time() * 1000) % 10**9 * 10**5
        begin = self.number
        if options["one"] is not None:
            self.publish(getattr(tasks, options["queue"]), options["one"])
        elif options["hog"]:
            self.publish(tasks.hog, options["hog"])
        else:
            self.steadily(options)
        self.stdout.write(json.dumps({"first": begin, "sent": self.number - begin}))

    def steadily(self, options):
        """Publish both kinds, each when it is due."""
        start = now = time.monotonic()
        due = {tasks.short: start, tasks.long: start}
        rates = {tasks.short: options["short"], tasks.long: options["long"]}
        while now - start < options["seconds"]:
            for task, rate in rates.items():
                while rate and due[task] <= now:
                    due[task] += 1 / rate
                    longest = 0.1 if task is tasks.short else options["longest"]
                    self.publish(task, max(0.01, longest * random.random() ** 2))
            time.sleep(max(0, min(time_ for task, time_ in due.items() if rates[task]) - time.monotonic()))
            now = time.monotonic()

    def publish(self, task, amount):
        """Publish one message; a broker that is away is waited for, for a minute."""
        for _ in range(60):
            try:
                task.delay(self.number, amount)
                break
            except task.OperationalError:
                time.sleep(1)
        Sent.objects.create(number=self.number)
        self.number += 1
