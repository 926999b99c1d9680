"""docs/reference.md says what the code says: each name, each default, and nothing else."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import click
import msgspec
import pytest

import mx_rmq
from mx_rmq import (
    Delivery,
    Depends,
    Limit,
    MessageQueue,
    Outgoing,
    Rate,
    Router,
    Topic,
    Worker,
)
from mx_rmq.admin import (
    Admin,
    BulkOptions,
    Cancelled,
    Doing,
    FailureView,
    Filter,
    MessageView,
    Page,
    Progress,
    Stats,
    WorkerView,
)
from mx_rmq.admin.bulk import Bulk
from mx_rmq.cli import COMMANDS as NAMES
from mx_rmq.cli import main
from mx_rmq.core.errors import MxRmqError
from mx_rmq.core.events import Event
from mx_rmq.core.handler import CronOptions, Handler, HandlerOptions
from mx_rmq.core.message import Priority, State
from mx_rmq.core.outgoing import ProduceOptions
from mx_rmq.core.retry import ByError, Delays, Exponential
from mx_rmq.settings import VARIABLE, QueueOptions, QueueSettings, WorkerSettings
from mx_rmq.sync import SyncQueue
from mx_rmq.topic import SyncTopic
from mx_rmq.worker import Drained
from tests.tour.pages import DOCS
from tests.tour.walk import FENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PAGE: Final = FENCE.sub("", (DOCS / "reference.md").read_text())
CODE: Final = re.compile(r"`([^`]+)`")
REQUIRED: Final = object()
SHARED: Final = ("--url", "--prefix", "--patience", "--json")
COMMANDS: Final = sorted(NAMES)

OPTIONS: Final[dict[str, tuple[type, type]]] = {
    "Unpack[QueueOptions]": (QueueOptions, QueueSettings),
    "Unpack[HandlerOptions]": (HandlerOptions, Handler),
    "Unpack[CronOptions]": (CronOptions, Handler),
    "Unpack[ProduceOptions]": (ProduceOptions, Outgoing),
}
"""The options of a function, by its signature, and the class that has their defaults."""

Table = list[list[str]]


def command_of(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def section(title: str) -> str:
    """Return what stands below a heading, up to the next one of its level."""
    heading = rf"^(##+) {re.escape(title)}\n(.*?)(?=^\1 |^## |\Z)"
    found = re.search(heading, PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no heading {title!r}"
    return found[2]


def tables(title: str) -> list[Table]:
    """Return the tables of a section, without their headings."""
    blocks = re.findall(r"(?:^\|.*\n)+", section(title), re.MULTILINE)
    return [[_cells(line) for line in block.splitlines()[2:]] for block in blocks]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def words(text: str) -> set[str]:
    """Return what is written as code, and the names in it."""
    return {word for code in CODE.findall(text) for word in (code, *re.findall(r"\w+", code))}


def code(cell: str) -> str:
    """Return the one piece of code in a cell."""
    found = CODE.match(cell)
    assert found is not None, f"{cell!r} does not begin with code"
    return found[1]


def default(cell: str) -> Any:
    """Return the default that a cell states."""
    if cell == "required":
        return REQUIRED
    text = code(cell)
    return Exponential() if text == "Exponential()" else ast.literal_eval(text)


def defaults(table: Table) -> dict[str, Any]:
    return {code(row[0]): default(row[1]) for row in table}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters of a method and their defaults."""
    found = inspect.signature(function).parameters.values()
    named = {
        one.name: REQUIRED if one.default is one.empty else one.default
        for one in found
        if one.name != "self" and one.kind is not one.VAR_KEYWORD
    }
    for one in found:
        if one.kind is one.VAR_KEYWORD:
            options, of = OPTIONS[one.annotation]
            preset = {field.name: field.default for field in fields(of)} | {"retry": None}
            named |= {
                name: None if preset[name] is MISSING else preset[name]
                for name in options.__annotations__
            }
    return named


def public(kind: type) -> set[str]:
    values = {one.name for one in fields(kind)} if is_dataclass(kind) else set()
    return {name for name in {*dir(kind), *values} if not name.startswith("_")}


# settings


def settings(kind: type[QueueSettings | WorkerSettings]) -> dict[str, Any]:
    found: dict[str, Any] = {one.name: one.default for one in fields(kind)}
    if "url" in found:
        found["url"] = REQUIRED  # an empty one is refused
    return found


@pytest.mark.parametrize(
    ("title", "kind", "settings_of", "more"),
    [
        ("MessageQueue", MessageQueue, QueueSettings, {"middleware": (), "lifespan": None}),
        ("Worker", Worker, WorkerSettings, {"mq": REQUIRED}),
    ],
)
def test_every_setting_is_there_with_its_default_and_its_variable(
    title: str,
    kind: type,
    settings_of: type[QueueSettings | WorkerSettings],
    more: dict[str, Any],
) -> None:
    table = tables(title)[0]
    assert defaults(table) == settings(settings_of) | more
    assert set(parameters(kind.__init__)) == {code(row[0]) for row in table}  # type: ignore[misc]  # of the class itself
    for name, _, variable, _ in table:
        expected = "–" if code(name) in more else f"`{VARIABLE}{code(name).upper()}`"
        assert variable == expected


def test_every_public_name_of_queue_and_worker_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_RMQ_URL", "redis://nowhere")
    mq = MessageQueue()
    queue = public(MessageQueue) | {name for name in vars(mq) if not name.startswith("_")}
    assert queue <= words(section("MessageQueue"))
    worker = public(Worker) | {name for name in vars(Worker(mq)) if not name.startswith("_")}
    assert worker <= words(section("Worker"))
    assert {one.name for one in fields(Drained)} <= words(section("Worker"))


# declaring, producing


@pytest.mark.parametrize(
    ("title", "method"),
    [
        ("mq.handler", MessageQueue.handler),
        ("mq.cron", MessageQueue.cron),
        ("mq.produce", MessageQueue.produce),
        ("mq.produce_many", MessageQueue.produce_many),
        ("Depends", Depends),
    ],
)
def test_every_parameter_is_there_with_its_default(title: str, method: Callable[..., Any]) -> None:
    assert defaults(tables(title)[0]) == parameters(method)


def test_every_field_of_a_retry_policy_is_there_with_its_default() -> None:
    stated = {(code(row[0]), code(row[1])): default(row[2]) for row in tables("Retry policies")[1]}
    assert stated == {
        (policy.__name__, one.name): REQUIRED if one.required else one.default
        for policy in (Exponential, Delays, ByError)
        for one in msgspec.structs.fields(policy)
    }


@pytest.mark.parametrize(("number", "kind"), [(0, Limit), (1, Rate)])
def test_every_field_of_a_limit_is_there_with_its_default(
    number: int, kind: type[msgspec.Struct]
) -> None:
    assert defaults(tables("Limits")[number]) == {
        one.name: REQUIRED if one.required else one.default for one in msgspec.structs.fields(kind)
    }


def test_what_a_handler_raises_is_called_as_shown() -> None:
    shown = [code(row[0]) for row in tables("Retry, Snooze and Reject")[0][:3]]
    for text, kind in zip(shown, (mx_rmq.Retry, mx_rmq.Snooze, mx_rmq.Reject), strict=True):
        signature = inspect.signature(kind)
        plain = signature.replace(
            parameters=[one.replace(annotation=one.empty) for one in signature.parameters.values()],
            return_annotation=signature.empty,
        )
        assert text == kind.__name__ + str(plain).replace("''", '""')


def test_a_delivery_has_what_is_shown() -> None:
    shown = {name for row in tables("Delivery")[0] for name in CODE.findall(row[0])}
    assert {name.partition("(")[0] for name in shown} == public(Delivery)


def test_an_outgoing_has_what_is_shown() -> None:
    assert {one.name for one in fields(Outgoing)} <= words(section("Middleware"))


def test_priorities_and_states_are_named() -> None:
    assert set(Priority) <= words(section("mq.produce"))
    assert set(State) <= words(section("mq.admin"))


# events


def test_every_event_is_there_with_its_fields() -> None:
    stated = {code(row[0]): CODE.findall(row[1]) for row in tables("Events")[0]}
    assert stated == {kind.__name__: [one.name for one in fields(kind)] for kind in get_args(Event)}


# operating


def test_every_method_of_admin_is_there_with_its_parameters() -> None:
    assert _calls(tables("mq.admin")[0]) == _methods(Admin)


def test_every_method_of_sync_is_there_with_its_parameters() -> None:
    assert _calls(tables("mq.sync")[0]) == _methods(SyncQueue)


def test_every_parameter_and_method_of_a_topic_is_there() -> None:
    made, methods = tables("mq.topic")
    assert {code(row[0]): row[1] for row in made} == {
        "name": "required",
        "payload": "required",
        "result": "`Any`",
    }
    assert set(parameters(MessageQueue.topic)) == {code(row[0]) for row in made}
    assert _calls(methods) == _methods(SyncTopic) | {"handler(**options)", "check(payload)"}
    for name in public(SyncTopic):
        assert [*_shown(getattr(Topic, name))] == [*_shown(getattr(SyncTopic, name))]
    assert public(Topic) <= words(section("mq.topic"))


def test_every_public_name_of_a_router_is_there() -> None:
    assert public(Router) | {"handlers", "crons"} <= words(section("Router"))


def _calls(table: Table) -> set[str]:
    return {call for row in table for call in CODE.findall(row[0])}


def _methods(kind: type) -> set[str]:
    """Return the methods of a class as the page writes them."""
    return {f"{name}({', '.join(_shown(getattr(kind, name)))})" for name in public(kind)}


def _shown(method: Callable[..., Any]) -> Iterable[str]:
    for one in list(inspect.signature(method).parameters.values())[1:]:
        if one.annotation == "Unpack[BulkOptions]":
            preset = inspect.signature(Bulk).parameters
            yield from (f"{name}={preset[name].default!r}" for name in BulkOptions.__annotations__)
        elif one.default is not one.empty:
            yield f"{one.name}={one.default!r}".replace("typing.", "")
        else:
            yield "**" * (one.kind is one.VAR_KEYWORD) + one.name


@pytest.mark.parametrize(
    "kind",
    [Stats, MessageView, FailureView, Filter, Page, Progress, WorkerView, Doing],
)
def test_every_field_of_what_admin_returns_is_there(kind: type) -> None:
    (row,) = [row for row in tables("mq.admin")[1] if code(row[0]) == kind.__name__]
    elsewhere = {"None", "list", "errors"}  # words of the explanations
    shown = set(CODE.findall(row[1]))
    assert shown - elsewhere == public(kind) - elsewhere
    assert public(kind) <= shown


def test_every_answer_of_cancel_is_there() -> None:
    assert {answer.name for answer in Cancelled} <= words(section("mq.admin"))


# the command line


def test_every_command_is_there() -> None:
    titles = re.findall(r"^### mx-rmq (\S+)$", PAGE, re.MULTILINE)
    assert sorted(titles) == COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_of_a_command_is_there(name: str) -> None:
    command = command_of(name)
    parent = click.Context(main, **main.context_settings)  # click keeps the help option
    context = click.Context(command, parent=parent)
    wanted = [
        one.make_metavar(context) for one in command.params if isinstance(one, click.Argument)
    ]
    assert section(f"mx-rmq {name}").strip().startswith(f"`{' '.join(('mx-rmq', name, *wanted))}`")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_there_with_its_default(name: str) -> None:
    found = tables(f"mx-rmq {name}")
    stated = {code(row[0]): row[1] for row in found[0]} if found else {}
    command = command_of(name)
    options = {
        one.opts[0]: one
        for one in command.params
        if isinstance(one, click.Option) and not one.hidden
    }
    assert set(stated) == set(options) - set(SHARED)
    for option, cell in stated.items():
        assert _agrees(options[option], cell), option


def _agrees(option: click.Option, cell: str) -> bool:
    """Say whether a cell states an option's default; `setting`: there is a setting of that name."""
    if option.required:
        return cell == "required"
    if cell == "setting":
        return option.name in {*settings(WorkerSettings), *settings(QueueSettings)}
    value = option.to_info_dict()["default"]
    stated = None if cell == "–" else default(cell)
    return bool(value == stated or (option.is_flag and not value and stated is None))


def test_the_shared_options_are_shared() -> None:
    assert tuple(code(row[0]) for row in tables("Shared options")[0]) == SHARED
    apart = {"completion", "dashboard", "worker", "server", "demo", "outbox"}
    for name in set(COMMANDS) - apart:
        assert set(SHARED) <= {opt for one in command_of(name).params for opt in one.opts}, name


# everything


def test_every_error_is_there() -> None:
    errors = {
        name
        for name in mx_rmq.__all__
        if isinstance(kind := getattr(mx_rmq, name), type) and issubclass(kind, MxRmqError)
    }
    assert {code(row[0]) for row in tables("Errors")[0]} == errors


@pytest.mark.parametrize("name", mx_rmq.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert name in words(PAGE)


def test_every_link_within_the_page_leads_to_a_heading() -> None:
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
