"""The addresses of the project. The dashboard asks for a staff login."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("orders.urls")),
    path("admin/", admin.site.urls),
    path("mx-rmq/", include("mx_rmq.django.urls")),
]
