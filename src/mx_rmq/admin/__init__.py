"""What operators do with a queue."""

from mx_rmq.admin.admin import ARCHIVES, WAITING, Admin
from mx_rmq.admin.bulk import Progress
from mx_rmq.admin.filter import Filter
from mx_rmq.admin.history import Happening, What
from mx_rmq.admin.models import (
    Cancelled,
    Doing,
    FailureView,
    MessageView,
    Page,
    Repair,
    Stats,
    WorkerView,
)
from mx_rmq.admin.overview import Overview
from mx_rmq.admin.rates import Rates, Totals
from mx_rmq.store.reads import ServerView

__all__ = [
    "ARCHIVES",
    "WAITING",
    "Admin",
    "Cancelled",
    "Doing",
    "FailureView",
    "Filter",
    "Happening",
    "MessageView",
    "Overview",
    "Page",
    "Progress",
    "Rates",
    "Repair",
    "ServerView",
    "Stats",
    "Totals",
    "What",
    "WorkerView",
]
