"""What operators do with a queue."""

from mx_rmq.admin.admin import ARCHIVES, Admin
from mx_rmq.admin.history import Happening, What
from mx_rmq.admin.rates import Rates, Totals
from mx_rmq.admin.view import Cancelled, FailureView, MessageView, Page, Stats, WorkerView

__all__ = [
    "ARCHIVES",
    "Admin",
    "Cancelled",
    "FailureView",
    "Happening",
    "MessageView",
    "Page",
    "Rates",
    "Stats",
    "Totals",
    "What",
    "WorkerView",
]
