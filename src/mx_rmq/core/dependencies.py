"""Dependencies: what a handler asks for with `Annotated[T, Depends(provider)]`.

When a handler is declared, its providers and theirs are read, and what cannot work is refused. The
result is a tree. `Dependencies.plan` turns it into lists of calls in order; the runtime makes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from mx_rmq.core import signature
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Parameters = Sequence[tuple[inspect.Parameter, "Depends | int | None"]]
    """In order, each with its provider, PAYLOAD, DELIVERY, or None if it keeps its default."""

Scope = Literal["message", "worker"]
Overrides = dict[Callable[..., Any], Callable[..., Any]]

PAYLOAD: Final = 0  # where a plan finds the payload among its values
DELIVERY: Final = 1  # or the Batch
_FIRST: Final = 2  # where the values of providers begin


def _nothing() -> Any: ...


_MANAGERS: Final = (contextmanager(_nothing).__code__, asynccontextmanager(_nothing).__code__)
"""The code of every function with one of these decorators."""


@dataclass(frozen=True, slots=True)
class Depends:
    """Marks a parameter that a provider fills in: `db: Annotated[Session, Depends(session)]`.

    The provider is called once per message, or once per worker with scope="worker".
    """

    provider: Callable[..., Any]
    scope: Scope = field(default="message", kw_only=True)


class ProviderKind(Enum):
    """What calling a provider returns."""

    PLAIN = "the value"
    COROUTINE = "a coroutine that returns the value"
    GENERATOR = "a generator that yields the value and then cleans up"
    ASYNC_GENERATOR = "an async generator that does the same"

    @property
    def is_async(self) -> bool:
        return self in (ProviderKind.COROUTINE, ProviderKind.ASYNC_GENERATOR)


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """A provider that a parameter asks for, with its own dependencies."""

    function: Callable[..., Any]
    open: Callable[..., Any]  # the function, as a context manager if it is a generator function
    name: str
    kind: ProviderKind
    scope: Scope
    arguments: tuple[Argument, ...]


class Argument(NamedTuple):
    """One parameter of a handler or a provider, and where its value comes from."""

    name: str
    by_position: bool
    source: Provider | int  # or PAYLOAD, or DELIVERY


class Arguments(NamedTuple):
    """Where the arguments of a call stand in the list of values."""

    positional: tuple[int, ...]
    named: tuple[tuple[str, int], ...]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        return function(
            *[values[place] for place in self.positional],
            **{name: values[place] for name, place in self.named},
        )


class PlanStep(NamedTuple):
    """One call of a provider. Its value is appended to the list of values."""

    provider: Provider
    arguments: Arguments


class Plan(NamedTuple):
    """The calls for one message, in order. Values: payload, delivery, then one per step."""

    of_worker: tuple[PlanStep, ...]  # made once per worker
    in_loop: tuple[PlanStep, ...]
    with_handler: tuple[PlanStep, ...]  # plain providers of a plain handler: in its thread
    handler: Arguments


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """What a handler needs."""

    title: str
    is_async: bool
    batch: bool  # it has no Delivery, but a Batch
    arguments: tuple[Argument, ...]

    def plan(self, overrides: Overrides) -> Plan:
        """Put the providers in the order of their calls, each of them once.

        An override replaces a provider everywhere, except where the replacement asks for it.
        """
        order: dict[tuple[Callable[..., Any], Scope], Provider] = {}
        chosen: dict[Provider, Provider] = {}  # provider -> the first equal one, or its override

        def choose(arguments: tuple[Argument, ...], replaced: tuple[Any, ...]) -> None:
            for _, _, source in arguments:
                if isinstance(source, Provider) and source not in chosen:
                    chosen[source] = visit(source, replaced)

        def visit(provider: Provider, replaced: tuple[Any, ...]) -> Provider:
            if provider.function in overrides and provider.function not in replaced:
                replaced = (*replaced, provider.function)
                where = f"{self.title}: dependency_overrides[{provider.name}]"
                replacement = Depends(overrides[provider.function], scope=provider.scope)
                provider = _Reader({}, self.batch).provider(where, replacement)
            choose(provider.arguments, replaced)
            return order.setdefault((provider.function, provider.scope), provider)

        choose(self.arguments, ())
        providers = list(order.values())
        in_loop = {one for one in providers if self.is_async or one.kind.is_async}
        for provider in reversed(providers):  # what a provider needs comes before it
            if provider in in_loop:
                needed = [source for _, _, source in provider.arguments]
                in_loop |= {chosen[one] for one in needed if isinstance(one, Provider)}
        of_worker = [one for one in providers if one.scope == "worker"]
        rest = [one for one in providers if one.scope == "message"]
        early = [one for one in rest if one in in_loop]
        late = [one for one in rest if one not in in_loop]
        place = {one: at for at, one in enumerate(of_worker + early + late, _FIRST)}

        def arguments(given: tuple[Argument, ...]) -> Arguments:
            places = [
                place[chosen[source]] if isinstance(source, Provider) else source
                for _, _, source in given
            ]
            by_position = sum(one.by_position for one in given)
            names = [one.name for one in given]
            return Arguments(
                tuple(places[:by_position]),
                tuple(zip(names[by_position:], places[by_position:], strict=True)),
            )

        def steps(ones: list[Provider]) -> tuple[PlanStep, ...]:
            return tuple(PlanStep(one, arguments(one.arguments)) for one in ones)

        return Plan(steps(of_worker), steps(early), steps(late), arguments(self.arguments))


def read_dependencies(
    title: str, is_async: bool, batch: bool, parameters: Parameters, names: Mapping[str, Any]
) -> Dependencies | None:
    """Read what a handler needs, or refuse it; None: nothing. `names`: its local namespace."""
    if not any(isinstance(source, Depends) for _, source in parameters):
        return None
    return Dependencies(title, is_async, batch, _Reader(names, batch).arguments(title, parameters))


def depends_of(parameter: inspect.Parameter, title: str) -> Depends | None:
    """Return the `Depends` of a parameter whose annotation is resolved; None: it has none."""
    where = f"{title}: {parameter.name}"
    if isinstance(parameter.default, Depends):
        raise InvalidInput(
            f"{where}: Depends cannot be its default; "
            f"write {parameter.name}: Annotated[…, Depends(…)]"
        )
    notes = get_args(parameter.annotation)[1:] if _is_annotated(parameter) else ()
    if any(note is Depends for note in notes):
        raise InvalidInput(f"{where}: Depends needs a provider: Depends(function)")
    found = [note for note in notes if isinstance(note, Depends)]
    if len(found) > 1:
        raise InvalidInput(f"{where}: has {len(found)} Depends; a parameter can have one")
    return found[0] if found else None


def _is_annotated(parameter: inspect.Parameter) -> bool:
    return get_origin(parameter.annotation) is Annotated


class _Reader:
    """Reads the providers of one handler."""

    def __init__(self, names: Mapping[str, Any], batch: bool) -> None:
        self._names = names
        self._batch = batch
        self._path: list[tuple[Any, str]] = []  # the providers being read, outermost first
        self._read: dict[tuple[Any, Scope], Provider] = {}

    def arguments(self, title: str, parameters: Parameters) -> tuple[Argument, ...]:
        """Return the arguments of a call: by position up to the first that keeps its default."""
        found = []
        by_position = True
        for parameter, source in parameters:
            if source is None:
                by_position = False
                continue
            by_position &= parameter.kind is not parameter.KEYWORD_ONLY
            if parameter.kind is parameter.POSITIONAL_ONLY and not by_position:
                raise InvalidInput(
                    f"{title}: {parameter.name} comes after a parameter with a default"
                )
            given: Provider | int
            if isinstance(source, Depends):
                given = self.provider(f"{title}: {parameter.name}", source)
            else:
                given = source
            found.append(Argument(parameter.name, by_position, given))
        return tuple(found)

    def provider(self, where: str, depends: Depends) -> Provider:
        """Read a provider and what it needs, or refuse it."""
        function, scope = depends.provider, depends.scope
        if not callable(function):
            raise InvalidInput(f"{where}: its provider {function!r:.80} is not callable")
        links = signature.chain(function)
        name = signature.name_of(links)
        title = f"{where}: its provider {name}"
        if scope not in get_args(Scope):
            raise InvalidInput(f'{title} has scope={scope!r:.80}: it must be "message" or "worker"')
        try:
            hash(function)
        except TypeError as error:
            raise InvalidInput(f"{title} cannot be hashed") from error
        if (function, scope) in self._read:
            return self._read[function, scope]
        if any(getattr(link, "__code__", None) in _MANAGERS for link in links):
            raise InvalidInput(
                f"{title} is a context manager: remove the decorator; a provider only has to yield"
            )
        if any(function == known for known, _ in self._path):
            names = " -> ".join([*(known for _, known in self._path), name])
            raise InvalidInput(f"{title} depends on itself: {names}")
        self._path.append((function, name))
        try:
            arguments = self.arguments(title, self._parameters(title, function))
        finally:
            self._path.pop()
        if scope == "worker":
            _check_worker_scope(title, arguments)
        kind = _kind(links)
        opened: Callable[..., Any] = function
        if kind is ProviderKind.GENERATOR:
            opened = contextmanager(function)
        elif kind is ProviderKind.ASYNC_GENERATOR:
            opened = asynccontextmanager(function)
        read = Provider(function, opened, name, kind, scope, arguments)
        self._read[function, scope] = read
        return read

    def _parameters(self, title: str, function: Callable[..., Any]) -> Parameters:
        """Return a provider's parameters, or refuse one that nothing fills in."""
        try:
            declared = signature.of(function)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{title}: its signature cannot be inspected") from error
        found: list[tuple[inspect.Parameter, Depends | int | None]] = []
        for parameter in declared.parameters.values():
            if parameter.kind in signature.VARIADIC:
                continue
            annotation = signature.hint(parameter, title, function, self._names)
            parameter = parameter.replace(annotation=annotation)  # noqa: PLW2901 - resolved
            source: Depends | int | None = depends_of(parameter, title)
            if source is None and self._is_given(title, parameter):
                source = DELIVERY
            if source is None and signature.is_needed(parameter):
                name = signature.shown(parameter)
                given = "Batch" if self._batch else "Delivery"
                raise InvalidInput(
                    f"{title} takes {name}, which needs Depends, {given} or a default"
                )
            found.append((parameter, source))
        return found

    def _is_given(self, title: str, parameter: inspect.Parameter) -> bool:
        """Return whether a parameter gets the Delivery, or the Batch of a batch handler."""
        is_delivery, is_batch = signature.is_delivery(parameter), signature.is_batch(parameter)
        if not is_delivery and not is_batch:
            return False
        if is_batch is self._batch:
            return True
        if not signature.is_needed(parameter):
            return False
        why = (
            "a Delivery, but it is called once per batch: it can take the Batch"
            if self._batch
            else "a Batch, but its handler has no batch="
        )
        raise InvalidInput(f"{title} takes {parameter.name}, {why}")


def _check_worker_scope(title: str, arguments: tuple[Argument, ...]) -> None:
    for name, _, source in arguments:
        if not isinstance(source, Provider) or source.scope == "message":
            raise InvalidInput(
                f'{title} has scope="worker", but its parameter {name} depends on the message'
            )


def _kind(links: list[Any]) -> ProviderKind:
    for runs in map(signature.called, links):
        if inspect.isasyncgenfunction(runs):
            return ProviderKind.ASYNC_GENERATOR
        if inspect.isgeneratorfunction(runs):
            return ProviderKind.GENERATOR
        if inspect.iscoroutinefunction(runs):
            return ProviderKind.COROUTINE
    return ProviderKind.PLAIN
