from django.db import models


class Payment(models.Model):
    reference = models.CharField(max_length=40)
    cents = models.IntegerField()
