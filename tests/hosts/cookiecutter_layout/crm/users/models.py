from django.db import models


class Contact(models.Model):
    email = models.EmailField(unique=True)
    points = models.IntegerField(default=0)
