from celery import Task


class LoggedTask(Task):
    """The base of all our tasks."""

    abstract = True
    sent = 0

    def apply_async(self, args=(), kwargs=None, **options):
        type(self).sent += 1
        headers = {"argument-count": len(args), **(options.pop("headers", None) or {})}
        return super().apply_async(args, kwargs, headers=headers, **options)
