"""What `make storm`, `make bench` and `make compare` share: one Celery app, run under one transport or another."""
