"""A login beside the URL: it fills in what the URL leaves out, and is shown nowhere."""

from __future__ import annotations

import ast
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.login import read_password, shown_url, with_login

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", "redis://me:hunter2@h"),
        ("redis://h:6379/0", "redis://me:hunter2@h:6379/0"),
        ("rediss://h?ssl_ca_certs=/ca", "rediss://me:hunter2@h?ssl_ca_certs=/ca"),
        ("unix:///run/v.sock", "unix://me:hunter2@/run/v.sock"),
        ("redis+cluster://a:1,b:2", "redis+cluster://me:hunter2@a:1,b:2"),
        ("redis+sentinel://a,b/main/0", "redis+sentinel://me:hunter2@a,b/main/0"),
        ("redis://@h", "redis://me:hunter2@h"),
    ],
)
def test_a_login_goes_before_the_hosts(url: str, expected: str) -> None:
    assert with_login(url, "me", SECRET, None) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://you:x@h", "redis://you:x@h"),
        ("redis://you@h", "redis://you:hunter2@h"),
        ("redis://:x@h", "redis://me:x@h"),
        ("redis://you:@h", "redis://you:hunter2@h"),
        ("redis://h?username=you&password=x", "redis://h?username=you&password=x"),
        ("redis://h?username=you", "redis://:hunter2@h?username=you"),
        ("redis://h?password=x", "redis://me@h?password=x"),
        ("redis://h?password_file=/x", "redis://me@h?password_file=/x"),
    ],
)
def test_what_the_url_says_itself_wins(url: str, expected: str) -> None:
    assert with_login(url, "me", SECRET, None) == expected


@pytest.mark.parametrize(
    ("username", "password", "expected"),
    [
        (None, SECRET, "redis://:hunter2@h"),
        ("me", None, "redis://me@h"),
        (None, None, "redis://h"),
    ],
)
def test_either_half_may_be_set_alone(
    username: str | None, password: str | None, expected: str
) -> None:
    assert with_login("redis://h", username, password, None) == expected


@pytest.mark.parametrize("word", ["a/b?c#d@e:f%20 g&h=i", "ü€", "%41", ":@/", "+", "*"])
def test_any_characters_arrive_as_they_were_set(word: str) -> None:
    parts = urlsplit(with_login("redis://h:6379/3?db=1", word, word, None))
    assert (parts.hostname, parts.port, parts.path) == ("h", 6379, "/3")
    assert unquote(parts.username or "") == unquote(parts.password or "") == word


@pytest.mark.parametrize("file", ["/run/secrets/queue", "a b&c=d#e?f%20", "ü"])
def test_a_file_that_holds_the_password_becomes_an_option(file: str) -> None:
    for url in ("redis://h", "redis://h?db=1"):
        parts = urlsplit(with_login(url, "me", None, file))
        assert parts.username == "me"
        assert parts.password is None
        assert parse_qs(parts.query)["password_file"] == [file]
        assert ("db" in parse_qs(parts.query)) is ("db" in url)


@pytest.mark.parametrize(
    "url", ["redis://:x@h", "redis://h?password=x", "redis://h?password_file=x"]
)
def test_a_password_in_the_url_wins_over_the_file(url: str) -> None:
    assert with_login(url, None, None, "/file") == url


def test_a_password_and_a_file_are_one_too_many() -> None:
    with pytest.raises(InvalidInput, match="password and password_file are both set") as caught:
        with_login("redis://h", None, SECRET, "/file")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["embedded://./data", "embedded://a@b?c", "no url", ""])
def test_a_server_of_our_own_and_what_is_no_url_are_left_alone(url: str) -> None:
    assert with_login(url, "me", SECRET, None) == url
    assert with_login(url, None, None, "/file") == url


# how a URL is shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://[::1]:6379/0?db=1", "redis://[::1]:6379/0?db=1"),
        ("redis://hunter2@h", "redis://***@h"),
        ("redis://:hunter2@h:6379/0?db=1", "redis://***@h:6379/0?db=1"),
        ("redis://user:hunter2@h", "redis://***@h"),
        ("redis://user:x@hunter2@h", "redis://***@h"),
        ("redis://user:x/hunter2@h", "redis://***@h"),
        ("redis://@h", "redis://h"),
        ("unix:///run/s.sock", "unix:///run/s.sock"),
        ("unix://user:hunter2@/s.sock", "unix://***@/s.sock"),
        ("unix:///s.sock?password=hunter2&db=1", "unix:///s.sock?password=***&db=1"),
        ("redis://h?p%61ssword=hunter2&db=1", "redis://h?p%61ssword=***&db=1"),
        ("redis://h?PASSWORD=hunter2", "redis://h?PASSWORD=***"),
        ("redis://h?pwd=hunter2", "redis://h?pwd=***"),
        ("redis://h?auth=hunter2", "redis://h?auth=***"),
        ("redis://h?token=hunter2", "redis://h?token=***"),
        ("redis://h?username=hunter2", "redis://h?username=***"),
        ("redis://h?hunter2", "redis://h?***"),
        ("redis://h?db=1&hunter2", "redis://h?db=1&***"),
        ("rediss://h?ssl_password=hunter2", "rediss://h?ssl_password=***"),
        ("rediss://h?ssl_ca_certs=/ca.pem", "rediss://h?ssl_ca_certs=/ca.pem"),
        ("redis://h?password_file=/run/p", "redis://h?password_file=/run/p"),
        ("redis+cluster://u:hunter2@a:1,b:2", "redis+cluster://***@a:1,b:2"),
        ("redis+sentinel://a,b:1/main/0", "redis+sentinel://a,b:1/main/0"),
        (
            "redis+sentinel://a/n?sentinel_password=hunter2",
            "redis+sentinel://a/n?sentinel_password=***",
        ),
        ("embedded://./data", "embedded://./data"),
        # an @, a / or a ? is missing, or is not quoted
        ("redis://:hunter2", "redis://***"),
        ("redis://user:hunter2/0", "redis://***/0"),
        ("redis://[:hunter2", "redis://***"),
        ("redis://h/hunter2", "redis://h/***"),
        ("redis://:hunter2?x@h", "redis://***"),
        ("redis://:x?hunter2@h", "redis://***"),
        ("redis://h?password=x@hunter2", "redis://***"),
        ("redis://:hunter2#x@h", "redis://***"),
        ("redis://h#hunter2", "redis://***"),
        ("hunter2", "***"),
        ("user:hunter2@h:6379", "***"),
        ("redis:/:hunter2@h", "***"),
    ],
)
def test_a_url_is_shown_without_what_may_be_a_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


SHOWN_AS_THEY_ARE = {("server.py", "running.url"), ("endpoint.py", "self.url")}
"""The URL of our own server, which names a file with the password, and that of the metrics."""


def test_no_text_is_made_of_a_url_as_it_is() -> None:
    """Whatever formats or logs a URL calls shown_url."""
    found = set()
    for path in (Path(__file__).parents[1] / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            texts: list[ast.expr] = []
            if isinstance(node, ast.FormattedValue):
                texts = [node.value]
            elif isinstance(node, ast.Call):
                shows = ("logger.", "log.", "click.echo", "str", "repr")
                texts = node.args if ast.unparse(node.func).startswith(shows) else []
            words = [ast.unparse(text) for text in texts]
            found |= {
                (path.name, one)
                for one in words
                if one.rpartition(".")[2] in ("url", "address", "plain")
            }
    assert found == SHOWN_AS_THEY_ARE


# a file that holds a password


@pytest.mark.parametrize("text", ["hunter2", "hunter2\n", "hunter2\r\n", "a b\tü"])
def test_a_password_is_the_only_line_of_its_file(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "password").write_bytes(text.encode())
    assert read_password(file) == text.rstrip("\r\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"-----BEGIN KEY-----\nhunter2\n", "it has more than one line"),
        (b"hunter2\0", "it has more than one line"),
        (b"hunter2" * 1000, "it is longer than a password"),
        (b"hunter2\xff", "it is not UTF-8"),
        (b"\n", "it is empty"),
    ],
)
def test_another_file_is_not_sent_as_a_password(text: bytes, why: str, tmp_path: Path) -> None:
    (file := tmp_path / "secret").write_bytes(text)
    with pytest.raises(OSError, match=f"secret does not hold a password: {why}") as caught:
        read_password(file)
    assert SECRET not in str(caught.value)
