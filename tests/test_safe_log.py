"""Loggers that never raise."""

from __future__ import annotations

import asyncio
import logging
import sys
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from mx_rmq.safe_log import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAME = "mx_rmq.test_safe_log"

ERRORS = [ValueError("full disk"), asyncio.CancelledError(), GeneratorExit(), BaseException("x")]


class Failing(logging.Handler):
    """A handler that raises. Its `handleError` is not asked, as when a filter raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def handle(self, record: logging.LogRecord) -> bool:
        raise self._error


@pytest.fixture
def install() -> Iterator[Callable[[BaseException], None]]:
    logger = logging.getLogger(NAME)
    before = list(logger.handlers)
    yield lambda error: logger.addHandler(Failing(error))
    logger.handlers = before


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    stream = StringIO()
    monkeypatch.setattr(sys, "__stderr__", stream)
    return stream


@pytest.mark.parametrize("error", ERRORS)
def test_a_handler_that_raises_does_not_reach_the_caller(
    install: Callable[[BaseException], None], error: BaseException, stderr: StringIO
) -> None:
    install(error)
    logger = get_logger(NAME)
    logger.error("one")
    logger.error("two", exc_info=error)
    logger.about({"mx_rmq": {}}).warning("three")
    assert stderr.getvalue().count("\n") == 1  # all three are lost, the first is reported


def test_lost_calls_are_reported_on_stderr_once(
    install: Callable[[BaseException], None], stderr: StringIO
) -> None:
    install(ValueError("full disk"))
    logger = get_logger(NAME)
    for _ in range(5):
        logger.error("a line")
    (line,) = stderr.getvalue().splitlines()
    assert "ValueError: full disk" in line
    assert NAME in line


def test_a_closed_stderr_does_no_harm(
    install: Callable[[BaseException], None], stderr: StringIO
) -> None:
    install(ValueError())
    stderr.close()
    get_logger(NAME).error("a line")


def test_a_filter_that_raises_does_no_harm(stderr: StringIO) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise asyncio.CancelledError

    logger = logging.getLogger(NAME)
    logger.addFilter(refuse)
    try:
        get_logger(NAME).error("a line")
    finally:
        logger.removeFilter(refuse)


def test_a_record_names_the_line_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    get_logger(NAME).warning("here")
    (record,) = caplog.records
    assert (record.funcName, record.name) == ("test_a_record_names_the_line_that_logged_it", NAME)


def test_without_a_loop_a_request_to_end_the_program_passes(
    install: Callable[[BaseException], None], stderr: StringIO
) -> None:
    install(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        get_logger(NAME).error("a line")
