"""No regular expression in src/ takes long, whatever it is given.

Python's expressions backtrack: `a*b*c` with a long run of what both stars take needs time that
grows with the square or the cube of it, and meanwhile the whole process stands still. So each
expression in src/ is listed here with the input that is worst for it. A new one has to be added;
where plain string methods do, use those.
"""

from __future__ import annotations

import ast
import itertools
import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mx_rmq.core.names import LISTED, PARTITION
from mx_rmq.doctor.unlisted_topics import _HOLDS
from mx_rmq.store.lanes import _GENERATED
from tests.lab.growth import grows_gently
from tests.tour.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCE = ROOT / "src" / "mx_rmq"
USES: dict[str, Callable[[re.Pattern[str], str], object]] = {
    "findall": re.Pattern.findall,
    "finditer": re.Pattern.findall,
    "fullmatch": re.Pattern.fullmatch,
    "match": re.Pattern.match,
    "search": re.Pattern.search,
    "sub": lambda expression, text: expression.sub("", text),
}

# Where it is, and the expression as it is written there, or its name if it is put together. Then
# inputs: what stands first, what repeats, and what stands last.
WORST: dict[tuple[str, str], list[tuple[str, str, str]]] = {
    ("cli/filters.py", r"(\+?)([0-9]+(?:\.[0-9]+)?) ?(s|m|min|h|d|w)"): [
        ("", "1", "x"),
        ("1.", "1", "x"),
        ("", "1.", ""),
    ],
    ("core/codec.py", r'"(?:[^"\\]++|\\.)*+"?'): [
        ('"', "a", "\\"),
        ('"', '\\"', ""),
        ("", '"\\', ""),
        ('"', "a\\a", "\\\n"),
    ],
    ("core/codec.py", r"\{\}|\[\]"): [("", "{[", ""), ("", "{}", "")],
    ("login.py", r"(\[[0-9A-Za-z:.%]*\]|[^:\[\]]*)(:\d{1,5})?"): [
        ("", "a", "["),
        ("[", ":", "!"),
        ("", "1", ":1:"),
    ],
    ("login.py", r"/?\d*"): [("/", "1", "!")],
    ("core/names.py", "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"): [("", "a", "!")],
    ("outbox/statements.py", r"[a-z_][a-z0-9_]{0,39}(\.[a-z_][a-z0-9_]{0,39})?"): [
        ("", "a", "!"),
        ("a.", "a", "!"),
    ],
    ("outbox/django/database.py", ":([a-z]+)"): [("", ":a", ""), (":", "a", "")],
    ("core/names.py", r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}"): [("", "a", "\t")],
    ("core/names.py", "PARTITION"): [
        ("", "a", "!"),
        ("a/", "1", "!"),
        ("", "/1", "!"),
    ],
    ("core/names.py", "[A-Za-z0-9._:@/+=~-]{1,128}"): [("", "a", "!")],
    ("core/names.py", "[A-Za-z0-9._-]{1,64}"): [("", "a", "!")],
    ("core/names.py", "[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"): [("", "a", "!")],
    ("core/names.py", "[A-Za-z0-9][A-Za-z0-9._:-]{0,99}"): [("", "a", "!")],
    ("core/names.py", "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"): [("", "a", "!")],
    ("core/names.py", "LISTED"): [("", "a", "!"), ("a@", "a", "!"), ("", "@a", "!")],
    ("core/names.py", r"(?<=-[0-9a-f]{8})[0-9a-f]{24}$"): [
        ("-", "a", "!"),
        ("", "-aaaaaaaa", ""),
        ("", "-" + "a" * 32, "!"),
    ],
    ("core/partition.py", r".+-[0-9]{1,15}\.([0-9]{1,4})"): [
        ("", "-1", "!"),
        ("", "-" + "1" * 15, ""),
        ("", "-1.1", "!"),
    ],
    ("dashboard/actions.py", "[0-9]{1,15}"): [("", "1", "x")],
    (
        "dashboard/render.py",
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]",
    ): [("", "\x00", ""), ("", "a", "")],
    ("net/caller.py", "(?i)no permissions|can't (run|access)|NOPERM"): [
        ("", "no permission", ""),
        ("", "can't ru", ""),
    ],
    ("net/url.py", r":(\d+)(?=,|$)"): [("", ":1", "x"), (":", "1", "x")],
    ("net/url.py", r":\w+$"): [("", ":a", "!"), (":", "a", "!")],
    ("net/url.py", r"/([^/]+)(/\d*)?"): [("/", "a", "/x"), ("/a/", "1", "x")],
    ("net/url.py", r"/?\d*"): [("/", "1", "x")],
    ("net/url.py", r"unexpected keyword argument '(\w+)'"): [
        ("", "unexpected keyword argument '", ""),
        ("unexpected keyword argument '", "a", "!"),
    ],
    ("doctor/vulnerabilities.py", r"((?:Redis|Valkey) \d+\.\d+)\.(\d+)"): [
        ("Redis ", "1", "x"),
        ("Redis 1.", "1", "x"),
        ("Redis 1.1.", "1", ""),
    ],
    ("store/lanes.py", "_GENERATED"): [("", "k", "!"), ("k" * 13 + "-", "1", "x")],
    ("store/script.py", r"( *)-- use: ([\w, ]+)"): [("", " ", "!"), ("-- use: ", "a, ", "!")],
    ("store/script.py", r"@?user_script: ?(\d+)"): [
        ("", "@user_script: ", ""),
        ("user_script:", "1", ""),
    ],
    ("store/script.py", r"-- keys: ([\w |*]+)"): [
        ("-- keys: ", "a", "!"),
        ("-- keys: ", "*|", "!"),
    ],
    ("store/script.py", r"^local ([\w, ]+) = KEYS\["): [
        ("local ", "a", "!"),
        ("local a", ", a", "!"),
        ("local a", " ", "!"),
        ("", "local a = KEYS[1] \n", ""),
    ],
    ("store/script.py", r"\bARGV\.(\w+)"): [("ARGV.", "a", "!"), ("", "ARGV.", "")],
    ("store/script.py", r"^local (\w+) *= (?:tonumber\()?ARGV\[(\d+)\]"): [
        ("local ", "a", "!"),
        ("local a", " ", "!"),
        ("local a = ARGV[", "1", "!"),
    ],
    ("store/script.py", r"^local each(?:, width)? *= (\d+)(?:, \d+)? *-- per \w+: (.+)$"): [
        ("local each", " ", "!"),
        ("local each = ", "1", "!"),
        ("local each = 1, ", "1", "!"),
        ("local each = 1", " ", "!"),
        ("local each = 1 -- per ", "a", "!"),
        ("local each = 1 -- per a: ", "a", ""),
    ],
    ("store/script.py", r"^local stride *= (\d+) *-- keys per \w+"): [
        ("local stride", " ", "!"),
        ("local stride = ", "1", "!"),
        ("local stride = 1", " ", "!"),
    ],
    ("store/script.py", r"redis\.p?call\('([A-Z]+)'"): [("redis.call('", "A", "!")],
    ("store/script.py", r"redis\.p?call\('([A-Z]+)', (\w+)"): [
        ("redis.call('", "A", "!"),
        ("redis.call('A', ", "a", ""),
    ],
    ("doctor/slow_scripts.py", r"-- (\w+):"): [("-- ", "a", "!")],
    ("doctor/unlisted_topics.py", "holds"): [
        ("mx_rmq:{", "a", "!"),
        ("mx_rmq:{", "a", "}:payloads"),
    ],
    ("net/redis_errors.py", "DB index is out of range|SELECT is not allowed in cluster mode"): [
        ("", "DB index is out of ", ""),
        ("", "SELECT is not allowed in ", ""),
    ],
    ("net/redis_errors.py", r"of a cluster: use redis\S*:// for it"): [
        ("", "of a cluster: use redis", ""),
        ("of a cluster: use redis", "://", ""),
    ],
    ("worker.py", "[^A-Za-z0-9._-]"): [("", "!", ""), ("", "a", "")],
}
BUILT = {
    "PARTITION": PARTITION.pattern,
    "LISTED": LISTED.pattern,
    "_GENERATED": _GENERATED.pattern,
    "holds": r"mx_rmq:\{([^{}]+)" + _HOLDS,
}
"""Those that are put together, by the names of their variables."""


class Found(NamedTuple):
    """An expression in src/."""

    where: str
    text: str
    uses: frozenset[str]
    """The methods that are called with it; all of them where that cannot be told."""


def expressions() -> Iterator[Found]:
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"^\s*(import|from) re\b", text, re.MULTILINE):
            continue
        assert "from re " not in text, f"{path}: write `import re`, so that it is found here"
        assert "import re as " not in text, f"{path}: write `import re`, so that it is found here"
        where = path.relative_to(SOURCE).as_posix()
        tree = ast.parse(text)
        names = {
            id(node.value): target.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AnnAssign | ast.Assign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "re"
                and node.func.attr != "escape"
            ):
                uses, name = {node.func.attr}, names.get(id(node), "")
                if node.func.attr == "compile":
                    assert name, f"{path}, line {node.lineno}: give it a name"
                    files = [path] if name.startswith("_") else SOURCE.rglob("*.py")
                    calls = (re.findall(rf"\b{name}\.(\w+)\(", one.read_text()) for one in files)
                    uses = {*itertools.chain(*calls)}
                yield Found(
                    where, _written(node.args[0]) or name, frozenset(uses & {*USES} or USES)
                )


def _written(expression: ast.expr) -> str:
    """Return an expression that is written out; nothing for one that is put together."""
    value: Any = expression.value if isinstance(expression, ast.Constant) else ""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


FOUND = list(expressions())


def test_every_regular_expression_is_listed_with_its_worst_input() -> None:
    assert len(FOUND) > 25
    assert {(one.where, one.text) for one in FOUND} == WORST.keys()


@pytest.mark.parametrize("found", FOUND, ids=lambda one: f"{one.where} {one.text[:30]!a}")
def test_no_regular_expression_takes_long(found: Found) -> None:
    expression = re.compile(BUILT.get(found.text, found.text), re.MULTILINE)
    for before, again, after in WORST[found.where, found.text]:

        def worst(size: int, parts: tuple[str, str, str] = (before, again, after)) -> str:
            return parts[0] + parts[1] * (size // len(parts[1])) + parts[2]

        for use in found.uses:
            grows_gently(partial(USES[use], expression), worst)


def test_an_expression_that_backtracks_is_found() -> None:
    header = re.compile(r"([a-z]+):([\t -~]*?)[ \t]*")  # one was in metrics/http.py
    with pytest.raises(AssertionError, match=r"s for [0-9,]+ characters"):
        grows_gently(header.fullmatch, lambda size: f"a:{' ' * size}\x00")
