"""What `from mx_rmq import …` offers."""

from __future__ import annotations

import inspect

import mx_rmq
from mx_rmq.core import errors


def test_the_public_names_are_sorted_and_each_exists_once() -> None:
    names = mx_rmq.__all__
    assert names == sorted(set(names))
    assert all(hasattr(mx_rmq, name) for name in names)


def test_every_name_that_is_imported_is_public_and_no_other() -> None:
    assert all(hasattr(mx_rmq, name) for name in mx_rmq.__all__)  # imports each on first use
    imported = {
        name
        for name, value in vars(mx_rmq).items()
        if not name.startswith("_") and (name == "events" or not inspect.ismodule(value))
    }
    assert imported == set(mx_rmq.__all__)


def test_every_error_is_public() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree <= set(mx_rmq.__all__)


def test_every_public_name_says_what_it_is() -> None:
    assert [name for name in mx_rmq.__all__ if not inspect.getdoc(getattr(mx_rmq, name))] == []
