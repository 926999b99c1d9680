"""What operators see and do: `mq.admin` and its types."""

from mx_rmq.admin.admin import Admin
from mx_rmq.admin.bulk import BulkOptions, Progress
from mx_rmq.admin.filter import Filter
from mx_rmq.admin.held_back import HeldBack
from mx_rmq.admin.history import Happening, What
from mx_rmq.admin.keys import KeyList, KeyView
from mx_rmq.admin.limits import LimitsView, LimitView
from mx_rmq.admin.models import (
    Cancelled,
    Doing,
    FailureView,
    MessageView,
    Page,
    Repair,
    WorkerView,
)
from mx_rmq.admin.schedules import ScheduleView
from mx_rmq.admin.stats import Overview, Rates, Stats, Totals
from mx_rmq.admin.steps import RelatedMessage, StepsView, StepView, WaitView
from mx_rmq.admin.stuck_waits import StuckWait
from mx_rmq.admin.subscriptions import SubscriptionView
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
    "RelatedMessage",
    "Repair",
    "ScheduleView",
    "ServerView",
    "Stats",
    "StepView",
    "StepsView",
    "StuckWait",
    "SubscriptionView",
    "Totals",
    "WaitView",
    "What",
    "WorkerView",
]
