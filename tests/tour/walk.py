"""A page that is walked from top to bottom in one directory, as its reader would.

    ```python             written to a file if the first line is `# shop.py`; added to that file if
                          it is `# shop.py, continued`; else run
    ```sh                 typed into one bash, which fails at the first command that fails; what a
                          line that ends in ` &` starts goes on, in the background
    ```text               all that the block before it printed
    ```text background    all that was printed there since the last such block, or since something
                          was started there; or that will be within a while

In a text … stands for anything, and a line of nothing else for any number of lines; blanks are
blanks, however many. No other block may stand in such a page.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable

FENCE: Final = re.compile(r"^```(\w[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE: Final = re.compile(r"# ([\w/]+\.\w+)(, continued)?\n")
BACKGROUND: Final = re.compile(r"^(?P<command>.+) &$", re.MULTILINE)

BLOCK_WITHIN: Final = 30.0
"""Seconds that a block may take."""
TEXT_WITHIN: Final = 30.0
"""Seconds within which a text is printed in the background."""
STOP_WITHIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def walk(page: Path, directory: Path, programs: Path = Path(sys.executable).parent) -> None:
    """Do all that a page says; fail where it is wrong.

    It is done in the folder `page` of the directory, which is made if it is not there.
    """
    (home := directory / "page").mkdir(exist_ok=True)
    with Shell(home, logs=directory, programs=programs) as shell:
        for block in blocks_of(page):
            where = f"{page.name}:{block.line}"
            match block.language:
                case "python" if file := FILE.match(block.text):
                    path = home / file[1]
                    path.parent.mkdir(exist_ok=True)
                    with path.open("a" if file[2] else "w") as out:
                        out.write("\n\n" + block.text[file.end() :] if file[2] else block.text)
                case "python":
                    shell.run(f"python - <<'END'\n{block.text}END\n", where)
                case "sh":
                    shell.run(block.text, where)
                case "text":
                    printed = shell.printed
                    assert fits(printed, block.text), _differs(where, printed, block.text)
                case "text background":
                    shell.expect(block.text, where)
                case other:
                    raise AssertionError(f"{where}: nobody knows what to do with {other!r}")


def fits(printed: str, text: str) -> bool:
    """Say whether this was printed, as a text block shows it."""
    return re.fullmatch(_pattern(text), _trimmed(printed)) is not None


def _pattern(text: str) -> str:
    return "".join(map(_line, text.splitlines()))


def _line(line: str) -> str:
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    words = [re.escape(word).replace("…", ".*?") for word in re.split(" +", line.rstrip())]
    return " +".join(words) + r"\n"


def _trimmed(printed: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def _differs(where: str, printed: str, text: str) -> str:
    return f"{where}: the page says\n\n{text}\nand this was printed\n\n{printed}"


class Shell:
    """One bash for a whole page; when it is left, what it started is stopped."""

    def __init__(self, directory: Path, *, logs: Path, programs: Path) -> None:
        self.printed = ""
        """What the last block printed."""
        self._logs = logs
        self._foreground = logs / "foreground.log"
        self._background = logs / "background.log"
        self._seen = 0
        self._number = 0
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MX_RMQ_")
        }
        environment |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(logs),  # gunicorn has a socket there
            "PYTHONUNBUFFERED": "1",
            "PYTHONWARNINGS": "error",
        }
        with self._foreground.open("wb") as foreground:
            self._background.touch()
            self._bash = subprocess.Popen(
                ["bash", "--noprofile", "--norc", "-e"],
                cwd=directory,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=foreground,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all that it started: first with a signal that lets it finish, then with force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            if _comes_true(self._is_over, STOP_WITHIN):
                break
        if self._bash.stdin is not None:
            self._bash.stdin.close()
        self._bash.wait()

    def run(self, commands: str, where: str) -> None:
        """Run commands and wait for their end."""
        self._number += 1
        script, done = (self._logs / f"{self._number}.{end}" for end in ("sh", "done"))
        there = shlex.quote(str(self._background))
        commands, started = BACKGROUND.subn(rf"\g<command> >>{there} 2>&1 &", commands)
        script.write_text(commands)
        if started:
            self._seen = self._background.stat().st_size
        start = self._foreground.stat().st_size
        assert self._bash.stdin is not None
        self._bash.stdin.write(f". {script} </dev/null; : > {done}\n".encode())
        self._bash.stdin.flush()
        _comes_true(lambda: done.exists() or self._bash.poll() is not None, BLOCK_WITHIN)
        self.printed = self._foreground.read_bytes()[start:].decode()
        how = "failed" if self._bash.poll() is not None else f"takes over {BLOCK_WITHIN:g} s"
        assert done.exists(), (
            f"{where}: the block {how} and printed\n\n{self.printed}\n"
            f"and in the background, since the last text,\n\n{self._news()}"
        )

    def expect(self, text: str, where: str) -> None:
        """Wait until this is what is new in the background."""
        shown = _comes_true(lambda: fits(self._news(), text), TEXT_WITHIN)
        printed = self._news()
        assert shown, _differs(where, printed, text)
        self._seen += len(printed.encode())

    def _news(self) -> str:
        return self._background.read_bytes()[self._seen :].decode()

    def _is_over(self) -> bool:
        self._bash.poll()
        try:
            os.killpg(self._bash.pid, 0)
        except ProcessLookupError:
            return True
        return False


def _comes_true(fact: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
