"""Router: handlers and crons of a module, which a queue includes."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq import InvalidInput, MessageQueue, Router
from mx_rmq.testing import drain

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["mx_rmq.testing"]


def closed() -> MessageQueue:
    return MessageQueue("redis://nowhere.invalid:1")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidInput) as caught:
        call()
    return str(caught.value)


def line_of(text: str) -> int:
    """Return where a line of this file begins with a text."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(text))


def send(mail: str) -> None: ...
def post(mail: str) -> None: ...


def place(name: str) -> str:
    parts = Path(__file__).parts[-len(__name__.split(".")) :]
    return f"{__name__}.{name} ({'/'.join(parts)}:{line_of(f'def {name}(')})"


def test_a_queue_gets_the_handlers_and_crons_of_its_routers() -> None:
    mail, reports = Router(), Router()
    mail.handler("mail", timeout=5)(send)

    @reports.cron("* * * * *", missed="once")
    def report() -> None: ...

    mq = closed()
    mq.include(mail)
    mq.include(reports)
    assert mq.handlers["mail"].function is send
    assert mq.handlers["mail"].timeout == 5
    assert set(mq.handlers) == {"mail", "cron.report"}
    assert set(mq.crons) == {"cron.report"}
    assert mq.crons["cron.report"].missed == "once"


def test_the_handlers_of_a_router_run(mx_rmq_use: Callable[..., MessageQueue]) -> None:
    router, got = Router(), []

    @router.handler("mail")
    async def send(mail: str) -> None:
        got.append(mail)

    mq = closed()
    mq.include(router)
    mq = mx_rmq_use(mq)
    mq.sync.produce("mail", "hello")
    assert drain(mq).completed == 1
    assert got == ["hello"]


def test_what_a_router_declares_later_reaches_its_queues_too() -> None:
    router, first, second = Router(), closed(), closed()
    first.include(router)
    second.include(router)
    router.handler("mail")(send)
    router.cron("* * * * *", topic="tick")(lambda: None)
    for mq in (first, second):
        assert set(mq.handlers) == {"mail", "tick"}
        assert set(mq.crons) == {"tick"}


def test_two_handlers_of_one_topic_are_named_with_their_files_and_lines() -> None:
    mq, router, late = closed(), Router(), Router()
    mq.handler("mail")(send)
    words = f"topic 'mail' already has the handler {place('send')}; {place('post')} needs a "
    words += "different topic"
    assert refused(lambda: mq.handler("mail")(post)) == words

    router.handler("other")(post)
    router.handler("mail")(post)
    assert refused(lambda: mq.include(router)) == words
    mq.include(late)
    assert refused(lambda: late.handler("mail")(post)) == words
    assert mq.handlers["mail"].function is send
    assert set(mq.handlers) == {"mail"}, "nothing of a refused router is included"
    assert late.handlers == {}


def test_a_router_is_included_once() -> None:
    mq, router, empty = closed(), Router(), Router()
    router.handler("mail")(send)
    for one in (router, empty):
        mq.include(one)
    assert refused(lambda: mq.include(router)) == (
        f"topic 'mail' already has the handler {place('send')}; it was declared or included twice"
    )
    assert refused(lambda: mq.include(empty)) == "the queue already includes this router"


def test_the_place_of_a_wrapped_function_is_that_of_the_function() -> None:
    @functools.wraps(send)
    def wrapper(mail: str) -> None:
        send(mail)

    mq = closed()
    mq.handler("a")(wrapper)
    mq.handler("b")(functools.partial(send))
    assert mq.handlers["a"].place == mq.handlers["b"].place == place("send")


def test_the_place_of_what_has_no_file_is_its_name() -> None:
    mq = closed()
    mq.handler("a")([].append)
    assert mq.handlers["a"].place == mq.handlers["a"].name


def test_a_function_declared_without_a_topic_is_refused() -> None:
    wrong: Any = Router()
    assert 'handler("order.created")' in refused(lambda: wrong.handler(send))
    assert 'cron("*/5 * * * *")' in refused(lambda: wrong.cron(send))


def test_only_a_router_is_included_and_the_error_names_the_right_one() -> None:
    mq, module, empty = closed(), ModuleType("shop.mail"), ModuleType("shop.empty")
    module.router = Router()  # type: ignore[attr-defined]
    for given, words in (
        (module, "a Router, not the module shop.mail: did you mean shop.mail.router?"),
        (empty, "a Router, not the module shop.empty, which has none"),
        (5, "a Router, such as shop.mail.router, not 5"),
        (Router, "a Router, such as shop.mail.router, not the class Router"),
    ):
        wrong: Any = given
        assert refused(lambda wrong=wrong: mq.include(wrong)) == f"mq.include takes {words}"  # type: ignore[misc]
    assert mq.handlers == {}


def test_the_handler_of_a_typed_topic_needs_parentheses() -> None:
    wrong: Any = Router().topic("mail", str)
    assert "@orders.handler()" in refused(lambda: wrong.handler(send))
