"""What operators see and do: `mq.admin` and its types."""

from mx_rmq.admin.admin import Admin
from mx_rmq.admin.bulk import BulkOptions, Progress
from mx_rmq.admin.filter import Filter
from mx_rmq.admin.history import Happening, What
from mx_rmq.admin.keys import KeyList, KeyView
from mx_rmq.admin.limits import HeldBack, LimitsView, LimitView
from mx_rmq.admin.models import (
    Cancelled,
    Doing,
    FailureView,
    MessageView,
    Page,
    Repair,
    WorkerView,
)
from mx_rmq.admin.stats import Overview, Rates, Stats, Totals
from mx_rmq.store.reads import ServerView

__all__ = [
    "Admin",
    "BulkOptions",
    "Cancelled",
    "Doing",
    "FailureView",
    "Filter",
    "Happening",
    "HeldBack",
    "KeyList",
    "KeyView",
    "LimitView",
    "LimitsView",
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
