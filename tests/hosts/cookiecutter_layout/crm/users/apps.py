from django.apps import AppConfig


class UsersConfig(AppConfig):
    name = "crm.users"
    verbose_name = "Users"
