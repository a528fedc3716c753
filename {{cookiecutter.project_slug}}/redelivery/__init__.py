"""Tasks that are safe to run twice: one policy file, put in force, checked, and tested.

Add ``"redelivery"`` to ``INSTALLED_APPS``, set ``ACK_POLICY_FILE``, and call ``redelivery.setup(app)`` in the
module that makes the Celery app, after ``app.config_from_object(...)``.
"""

from redelivery.force import setup

__all__ = ["setup"]
