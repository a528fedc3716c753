from acme.queue.app import queue
from acme.queue.base import LoggedTask


class BookPayment(LoggedTask):
    """Books a payment once: under its reference."""

    name = "acme.billing.book-payment"
    max_retries = 5

    def run(self, reference, cents):
        from acme.billing.models import Payment

        payment, _ = Payment.objects.update_or_create(reference=reference, defaults={"cents": cents})
        return payment.pk


class Remind(LoggedTask):
    name = "acme.billing.remind"
    acks_late = False
    soft_time_limit = 90

    def run(self): ...


book_payment = queue.register_task(BookPayment())
remind = queue.register_task(Remind())


@queue.task(base=LoggedTask, name="zählen", time_limit=0.5)
def count(): ...
