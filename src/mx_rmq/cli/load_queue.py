"""Import the MessageQueue named by `module:attribute`, or raise a one-line error."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mx_rmq.cli.host import host
from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.text import storable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from mx_rmq.queue import MessageQueue

SHOWN: Final = 500  # characters of an error

_OURS: Final = str(Path(__file__).parent.parent)
_STDLIB: Final = sysconfig.get_path("stdlib")
_INSTALLED: Final = frozenset(("site-packages", "dist-packages"))


def load(target: str, imports: Sequence[str] = ()) -> MessageQueue:
    """Import a module, then `imports`, and return the module's queue, which must have handlers."""
    from mx_rmq.queue import MessageQueue

    name, attribute = parse(target)
    import_from_here()
    module = _imported(name)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise InvalidInput(f"module {name} has no {attribute!r}{_queues_in(module)}") from None
    if not isinstance(found, MessageQueue):
        raise InvalidInput(
            f"{name}:{attribute} is a {type(found).__name__}, not a MessageQueue"
            + _queues_in(module)
        )
    for one in imports:
        _imported(one)
    if not found.handlers:
        if framework := host():
            raise InvalidInput(f"the queue has no handlers: {framework.hint}")
        modules = ", ".join((name, *imports))
        raise InvalidInput(
            f"{name}:{attribute} has no handlers: declare one with @{attribute}.handler(topic), "
            f"or include a router with {attribute}.include(router), in {modules} or in another "
            "module that you pass with --import"
        )
    return found


def parse(target: str) -> tuple[str, str]:
    """Return the names of module and attribute."""
    name, colon, attribute = target.partition(":")
    attribute = attribute if colon else "mq"
    _refuse_file(name, f":{attribute}")
    if not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise InvalidInput(f"{target!r} must have the form module:attribute")
    return name, attribute


def check_module(name: str) -> None:
    """Refuse a name that no module can have."""
    _refuse_file(name)
    if not all(part.isidentifier() for part in name.split(".")):
        raise InvalidInput(f"--import {name!r} is not a module name such as shop.handlers")


def _refuse_file(name: str, attribute: str = "") -> None:
    if name.endswith(".py") or os.sep in name:
        module = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise InvalidInput(f"{name!r} is a file; pass its module: {module}{attribute}")


def import_from_here() -> None:
    """Add the current directory to sys.path, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):  # it, or a package around it
            raise InvalidInput(
                f"no module {missing!r} in {Path.cwd()} or on Python's path; "
                "start in the directory that contains it, or add that directory to PYTHONPATH"
            ) from None
        raise InvalidInput(f"cannot import {name}: {_described(error)}") from error


def _described(error: BaseException) -> str:
    """Return an error with the place in the user's code where it happened."""
    text = storable(str(error), SHOWN)
    if isinstance(error, SyntaxError) and error.filename is not None:
        place, text = f"{_short(error.filename)}:{error.lineno}: ", error.msg
    else:
        place = _place(error)
    return f"{place}{type(error).__name__}" + (f": {text}" if text else "")


def _place(error: BaseException) -> str:
    """Return the innermost line of user code, else the innermost outside mx_rmq."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, "<frozen"))
    ]
    theirs = [
        frame
        for frame in frames
        if not frame.filename.startswith((_STDLIB, "<"))
        and _INSTALLED.isdisjoint(Path(frame.filename).parts)
    ]
    for frame in reversed(theirs or frames):
        return f"{_short(frame.filename)}:{frame.lineno}: "
    return ""


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _queues_in(module: ModuleType) -> str:
    """Return a hint: the queues that the module does have."""
    from mx_rmq.queue import MessageQueue

    names = [name for name, value in vars(module).items() if isinstance(value, MessageQueue)]
    if not names:
        return f", and there is no MessageQueue in {module.__name__}"
    return "; its queues are " + ", ".join(f"{module.__name__}:{name}" for name in names)
