"""A page that is wrong does not pass: the walk finds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.tour import walk as walking
from tests.tour.walk import walk

if TYPE_CHECKING:
    from pathlib import Path

TRUE = """
```python
# greeting.py
def greet(name):
    print("hello", name)
```

```python
# greeting.py, continued
greet("ann")
```

```sh
(sleep 0.1; echo late; sleep 60) &
echo $! > pid
name=bob
python greeting.py
```

```text
hello …
```

```text background
late
```

```python
print("one")
print("two")
```

```text
one
…
```

```sh
echo $name, $MX_RMQ_LEASE
```

```text
bob,
```
"""


def page(directory: Path, text: str) -> Path:
    (path := directory / "page.md").write_text(text)
    return path


def test_a_page_that_is_true_passes_and_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_LEASE", "60")
    walk(page(tmp_path, TRUE), tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "page" / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("was", "is_now", "complaint"),
    [
        ("hello …", "good bye …", "page.md:20: the page says"),
        ("python greeting.py", "python greeting.py; false", "page.md:13: the block failed"),
        ('print("two")', "raise SystemExit(3)", "page.md:28: the block failed"),
        ("```text background", "```text backgruond", "nobody knows what to do with"),
    ],
)
def test_a_page_that_is_wrong_fails_where_it_is_wrong(
    was: str, is_now: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        walk(page(tmp_path, TRUE.replace(was, is_now)), tmp_path)


@pytest.mark.parametrize(
    ("was", "is_now", "limit", "complaint"),
    [
        ("\nlate\n", "\nnever\n", "TEXT_WITHIN", "page.md:24: the page says"),
        ("name=bob", "sleep 60", "BLOCK_WITHIN", "page.md:13: the block takes over"),
    ],
)
def test_a_page_of_which_something_never_comes_fails_after_a_while(
    was: str,
    is_now: str,
    limit: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walking, limit, 1.0)
    with pytest.raises(AssertionError, match=complaint):
        walk(page(tmp_path, TRUE.replace(was, is_now)), tmp_path)
