import os

from kombu import Exchange, Queue

broker_url = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672//")
task_ignore_result = True
task_acks_late = True
worker_prefetch_multiplier = 1
worker_concurrency = 4
task_default_queue = "acme"
task_queues = [
    Queue("acme", Exchange("acme"), routing_key="acme"),
    Queue("money", Exchange("topics", type="topic"), routing_key="money.#"),
]
task_routes = ([("acme.billing.*", {"exchange": "topics", "routing_key": "money.in"})],)
