"""What several scripts have in common is asserted in contracts.py."""

import pytest

pytest.register_assert_rewrite("tests.store.contracts", "tests.lab.broken", "tests.lab.calls")
