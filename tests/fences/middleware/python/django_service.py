"""The same service in Django, as docs/fencing-http.md shows it."""

import os
import urllib.parse

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from django.views.decorators.http import require_http_methods
from leasehold.asgi import FencingTokens, stale_problem


class StaleToken(MiddlewareMixin):
    def process_exception(self, request, exception):
        if problem := stale_problem(exception):
            return JsonResponse(problem, status=412, content_type="application/problem+json")


@require_http_methods(["PUT"])
def put(request):
    token = request.scope["state"]["fencing_token"]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT leasehold.fence('report', %s)", [token])
        cursor.execute("UPDATE report SET body = %s", [request.body.decode()])
    return HttpResponse(status=204)


def put_unfenced(request):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE report SET body = %s", [request.body.decode()])
    return HttpResponse(status=204)


def put_forgotten(request):
    with connection.cursor() as cursor:
        # The trigger of this table refuses writes beside the fence.
        cursor.execute("UPDATE payout SET amount = 20")
    return HttpResponse(status=204)


urlpatterns = [
    path("report", put),
    path("unfenced", put_unfenced),
    path("forgotten", put_forgotten),
]

database = urllib.parse.urlsplit(os.environ["DATABASE"])
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": database.hostname,
            "PORT": database.port,
            "USER": database.username,
            "NAME": database.path[1:],
        }
    },
    MIDDLEWARE=[f"{__name__}.StaleToken"],
    ROOT_URLCONF=__name__,
)
app = FencingTokens(get_asgi_application())
