"""The dashboard for staff: `path("mx-rmq/", include("mx_rmq.django.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from mx_rmq.django.dashboard_view import dashboard

app_name = "mx_rmq"

urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
