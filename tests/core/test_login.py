"""A login beside the URL: it fills in what the URL leaves out, and is shown nowhere."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.login import with_login

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
