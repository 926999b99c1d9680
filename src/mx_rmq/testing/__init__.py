"""The testing kit: run your own queue on a real server in your tests. See docs/testing.md.

It is a pytest plugin that you enable with `pytest_plugins = ["mx_rmq.testing"]`. Without pytest,
everything but its fixtures works.
PYTEST_DONT_REWRITE: it contains no asserts, and a conftest.py may import it before pytest does.
"""

from unittest.mock import ANY  # matches any payload, any option, or any part of either

from mx_rmq.testing.assertions import Containing, assert_not_produced, assert_produced, produced
from mx_rmq.testing.use_in_tests import drain, use

__all__ = [
    "ANY",
    "Containing",
    "assert_not_produced",
    "assert_produced",
    "drain",
    "produced",
    "use",
]

try:
    from mx_rmq.testing.fixtures import (
        mx_rmq_queue,
        mx_rmq_server,
        mx_rmq_url,
        mx_rmq_use,
        pytest_addoption,
    )
except ModuleNotFoundError as missing:
    if missing.name != "pytest":
        raise
else:
    __all__ += ["mx_rmq_queue", "mx_rmq_server", "mx_rmq_url", "mx_rmq_use", "pytest_addoption"]
