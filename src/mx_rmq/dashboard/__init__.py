"""The dashboard: `mx-rmq dashboard`, or mounted in any ASGI application."""

from mx_rmq.core.text import how_to_install

try:
    import jinja2
    import starlette
except ImportError as missing:
    raise ImportError(
        f"the dashboard needs {missing.name}: {how_to_install('dashboard')}"
    ) from missing

from mx_rmq.dashboard.app import Dashboard
from mx_rmq.dashboard.auth import Password

__all__ = ["Dashboard", "Password"]

del jinja2, starlette
