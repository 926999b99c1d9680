"""What the signature of a function says: its parameters, their annotations, what it wraps."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from mx_rmq.core.batch import Batch
from mx_rmq.core.delivery import Delivery
from mx_rmq.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def of(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # annotations are evaluated lazily: here, not by the signature
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def hint(parameter: inspect.Parameter, title: str, function: Any, names: Mapping[str, Any]) -> Any:
    """Return a parameter's annotation, resolved if it is a string. `title` is for the error."""
    if parameter.annotation is parameter.empty:
        return Any
    around = _globals(chain(function)[-1])
    # they may be imported under TYPE_CHECKING only
    around = {"Delivery": Delivery, "Batch": Batch, **around}

    def probe() -> None: ...

    probe.__annotations__ = {"hint": parameter.annotation}
    try:
        return get_type_hints(probe, around, dict(names), include_extras=True)["hint"]
    except Exception as error:  # the string may be any expression
        raise InvalidInput(
            f"{title}: the annotation {parameter.annotation!r:.80} of {parameter.name} "
            f"cannot be resolved: {error}"
        ) from error


def returned(declared: inspect.Signature, function: Any, names: Mapping[str, Any]) -> Any:
    """Return the annotation of what a function returns; Any: there is none, or it is unknown."""
    if declared.return_annotation is declared.empty:
        return Any
    result = inspect.Parameter(
        "result", inspect.Parameter.KEYWORD_ONLY, annotation=declared.return_annotation
    )
    try:
        return hint(result, "", function, names)
    except InvalidInput:  # imported under TYPE_CHECKING only: nothing needs it
        return Any


def _globals(innermost: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function, or of a class's `__init__`, may use."""
    if not inspect.isclass(innermost):
        return getattr(called(innermost), "__globals__", {})
    module = getattr(sys.modules.get(innermost.__module__), "__dict__", {})
    return {**module, **getattr(innermost.__init__, "__globals__", {})}


def is_delivery(parameter: inspect.Parameter) -> bool:
    return _is(Delivery, parameter)


def is_batch(parameter: inspect.Parameter) -> bool:
    return _is(Batch, parameter)


def item_type(hint: Any) -> Any:
    """Return the type of the items of a list or a Sequence; None: it is neither."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint in (list, Sequence):
        return Any
    if get_origin(hint) in (list, Sequence):
        return get_args(hint)[0]
    return None


def _is(kind: type, parameter: inspect.Parameter) -> bool:
    hint = parameter.annotation
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return set(get_args(hint)) == {kind, NoneType}
    return hint is kind


def is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def shown(parameter: inspect.Parameter) -> str:
    stars = VARIADIC.index(parameter.kind) + 1 if parameter.kind in VARIADIC else 0
    return "*" * stars + parameter.name


def chain(function: Any) -> list[Any]:
    """Return what is called and what it wraps in turn, by partial or functools.wraps."""
    links = [function]
    while len(links) < sys.getrecursionlimit():  # a wrapper may claim to wrap itself
        inside = getattr(function, "func" if _is_partial(function) else "__wrapped__", None)
        if inside is None:
            break
        links.append(function := inside)
    return links


def called(link: Any) -> Any:
    """Return the function that runs when this is called."""
    while _is_partial(link):
        link = link.func
    return link if inspect.isroutine(link) else type(link).__call__


def name_of(links: list[Any]) -> str:
    """Return the module and qualified name of a chain."""
    named = next((link for link in links if hasattr(link, "__qualname__")), type(links[-1]))
    return f"{named.__module__}.{named.__qualname__}"


def _is_partial(link: Any) -> bool:
    return isinstance(link, functools.partial)
