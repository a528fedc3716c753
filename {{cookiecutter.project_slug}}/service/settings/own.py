"""This service's own settings, read last: what is set here wins. The template leaves this file to the service.

A setting is replaced by setting it, and extended by importing it:

    from service.settings.web import MIDDLEWARE as COMMON_MIDDLEWARE

    MIDDLEWARE = [*COMMON_MIDDLEWARE, "myapp.middleware.Mine"]
"""
