from celery import Celery

queue = Celery("acme")
queue.config_from_object("acme.queue.config")
queue.autodiscover_tasks(["acme.billing"], related_name="jobs")
