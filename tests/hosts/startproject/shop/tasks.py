from smtplib import SMTPException

from celery import shared_task
from django.core.mail import send_mail
from django.db.models import F

from .models import Order, Visit


@shared_task(bind=True, acks_late=True, autoretry_for=(OSError, SMTPException), retry_backoff=True)
def send_receipt(self, order_id):
    """Sends the receipt once: it looks whether it was sent before."""
    order = Order.objects.get(pk=order_id)
    if order.receipt_sent:
        return
    send_mail("Your receipt", f"You paid {order.total}.", None, [order.email])
    order.receipt_sent = True
    order.save(update_fields=["receipt_sent"])


@shared_task
def count_visit(page):
    Visit.objects.get_or_create(page=page)
    Visit.objects.filter(page=page).update(count=F("count") + 1)


@shared_task(name="shop.forget-visits", acks_late=False, time_limit=120, soft_time_limit=100)
def forget_visits():
    Visit.objects.all().delete()
