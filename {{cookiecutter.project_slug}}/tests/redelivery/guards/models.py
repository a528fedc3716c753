"""Rows that the guards' tasks write."""

from django.db import models


class Account(models.Model):
    """A balance that credits are added to."""

    balance = models.IntegerField(default=0)

    def __str__(self):
        return f"account {self.pk}"


class Credit(models.Model):
    """One credit; its number is the natural key that makes a second run find the first one's work."""

    number = models.CharField(max_length=40, unique=True)
    account = models.ForeignKey(Account, on_delete=models.CASCADE)

    def __str__(self):
        return self.number


class Rate(models.Model):
    """A rate of the day, written by upsert."""

    day = models.DateField(unique=True)
    value = models.IntegerField()

    def __str__(self):
        return str(self.day)


class Parcel(models.Model):
    """Something that is sent once: waiting, sending, sent."""

    state = models.CharField(max_length=10, default="waiting")

    def __str__(self):
        return f"parcel {self.pk}"


class Visit(models.Model):
    """A counter that may miss one."""

    page = models.CharField(max_length=100)

    def __str__(self):
        return self.page
