"""The addresses of the project."""

from django.urls import include, path

from tests.django.project.shop import views

urlpatterns = [
    path("mx-rmq/", include("mx_rmq.django.urls")),
    path("orders/", views.order),
    path("orders/async/", views.order_async),
    path("orders/<str:id>/", views.result_async),
    path("watch/<str:id>/", views.watch_async),
]
