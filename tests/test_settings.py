"""Settings: validated at once, from arguments, environment, file and defaults."""

from __future__ import annotations

import os
import re
from dataclasses import FrozenInstanceError, fields
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

from mx_rmq.core.errors import InvalidInput
from mx_rmq.settings import Limits, QueueSettings, WorkerSettings

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [field.name for field in fields(Limits)]
WHOLE = [field.name for field in fields(Limits) if field.type.startswith("int")]


def limits(name: str, value: Any) -> Any:
    return getattr(Limits(**{name: value}), name)


def test_the_defaults_are_those_of_the_contract() -> None:
    found = Limits()
    assert (found.max_payload, found.max_pending, found.dedup) == (1_048_576, 0, 120)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1, 2, 10_000_000])
def test_a_whole_number_is_accepted_everywhere(name: str, value: int) -> None:
    assert limits(name, value) == value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, -0.1, 2**53, inf, -inf, nan], ids=str)
def test_a_number_out_of_range_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        limits(name, value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, "1", True, b"1", [1], 1j], ids=repr)
def test_what_is_no_number_is_refused_and_named(name: str, value: Any) -> None:
    if value is None and name.endswith(("_max_bytes", "results_bytes")):  # it follows the server
        assert limits(name, None) is None
        return
    with pytest.raises(InvalidInput, match=f"{name}=.* is not a number"):
        limits(name, value)


@pytest.mark.parametrize("name", NAMES)
def test_only_times_may_have_a_fraction(name: str) -> None:
    if name in WHOLE:
        with pytest.raises(InvalidInput, match=f"{name}=1.5 is not a whole number"):
            limits(name, 1.5)
    else:
        assert limits(name, 1.5) == 1.5


@pytest.mark.parametrize("name", [name for name in NAMES if name != "max_payload"])
def test_nought_switches_off(name: str) -> None:
    assert limits(name, 0) == 0


def test_a_payload_limit_of_nought_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_payload=0 would refuse every payload"):
        Limits(max_payload=0)


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().dedup = 1  # type: ignore[misc]


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(TypeError):
        Limits(max_pennding=1)  # type: ignore[call-arg]


# settings

SECRET = "hunter2"
URL = f"redis://:{SECRET}@localhost:6379/0"
NO_URL = "no URL: pass one, set MX_RMQ_URL, or set url in mx-rmq.toml"


@pytest.fixture(autouse=True)
def empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work where there is no file, with none of our variables."""
    monkeypatch.chdir(tmp_path)
    for cls in (QueueSettings, WorkerSettings):
        for field in fields(cls):
            monkeypatch.delenv(f"MX_RMQ_{field.name.upper()}", raising=False)
    monkeypatch.delenv("MX_RMQ_CONFIG", raising=False)
    return tmp_path


def write(directory: Path, text: str, name: str = "mx-rmq.toml") -> None:
    (directory / name).write_text(text, encoding="utf-8")


def test_the_defaults_of_the_settings_are_those_of_the_contract() -> None:
    queue, worker = QueueSettings.load(url=URL), WorkerSettings.load()
    assert (queue.url, queue.prefix, queue.lease, queue.patience) == (URL, "mx-rmq", 30, 10)
    assert (queue.username, queue.password, queue.password_file) == (None, None, None)
    assert (queue.confirm, queue.confirm_replicas, queue.confirm_within) == ("stored", 1, 1)
    assert queue.limits == Limits()
    assert worker == WorkerSettings()
    assert (worker.concurrency, worker.topics, worker.grace, worker.prefetch, worker.name) == (
        100,
        None,
        30,
        1000,
        None,
    )
    assert (worker.metrics_port, worker.metrics_host) == (0, "127.0.0.1")


def test_the_limits_are_a_part_of_the_queues_settings() -> None:
    settings = QueueSettings(url=URL, max_pending=7, dedup=1.5)
    assert settings.limits == Limits(max_pending=7, dedup=1.5)
    assert type(settings.limits) is Limits


@pytest.mark.parametrize("url", [None, ""])
def test_a_queue_without_a_url_says_the_three_ways_to_give_one(url: str | None) -> None:
    for make in (QueueSettings, QueueSettings.load):
        with pytest.raises(InvalidInput, match=f"^{NO_URL}$"):
            make(url=url)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"^{NO_URL}$"):
        QueueSettings()


@pytest.mark.parametrize(
    ("cls", "field", "good", "bad"),
    [
        (QueueSettings, "lease", [0.1, 1, 86_400], [0, 0.09, 86_401, inf, nan, -1]),
        (QueueSettings, "patience", [0, 0.5, 300], [-0.1, 301, inf, nan]),
        (QueueSettings, "confirm_replicas", [1, 2, 100], [0, -1, 101]),
        (QueueSettings, "confirm_within", [0.001, 1, 60], [0, -1, 61, inf, nan]),
        (WorkerSettings, "concurrency", [1, 10_000], [0, -1, 10_001]),
        (WorkerSettings, "grace", [0, 0.5, 1e6], [-1, inf, nan]),
        (WorkerSettings, "prefetch", [0, 10_000], [-1, 10_001]),
        (WorkerSettings, "metrics_port", [0, 9464, 65_535], [-1, 65_536]),
    ],
)
def test_a_setting_has_its_range(cls: Any, field: str, good: list[float], bad: list[float]) -> None:
    url = {"url": URL} if cls is QueueSettings else {}
    for value in good:
        assert getattr(cls(**url, **{field: value}), field) == value
    for value in bad:
        expected = f"{field}={value!r} is not "
        with pytest.raises(InvalidInput, match=re.escape(expected)):
            cls(**url, **{field: value})


@pytest.mark.parametrize(
    ("cls", "fields", "expected"),
    [
        (QueueSettings, {"lease": "30"}, "lease='30' is not a number"),
        (QueueSettings, {"lease": True}, "lease=True is not a number"),
        (
            QueueSettings,
            {"prefix": "a b"},
            "prefix='a b' is not valid: prefix 'a b' must consist of",
        ),
        (QueueSettings, {"prefix": None}, "prefix=None is not valid"),
        (QueueSettings, {"max_payload": 0}, "max_payload=0 would refuse every payload"),
        (QueueSettings, {"url": 5}, "url is of type int, not a string"),
        (
            QueueSettings,
            {"confirm": "all"},
            "confirm='all' is not valid: confirm='all' is not one of",
        ),
        (QueueSettings, {"confirm": None}, "confirm=None is not valid"),
        (QueueSettings, {"confirm_replicas": 1.5}, "confirm_replicas=1.5 is not a whole number"),
        (QueueSettings, {"load_scripts": 0}, "load_scripts=0 is not true or false"),
        (QueueSettings, {"username": ""}, "username must be a non-empty string"),
        (QueueSettings, {"password": ""}, "password must be a non-empty string"),
        (QueueSettings, {"password_file": 5}, "password_file must be a non-empty string"),
        (WorkerSettings, {"concurrency": 1.5}, "concurrency=1.5 is not a whole number"),
        (WorkerSettings, {"topics": "orders"}, "topics='orders' is not a list of topics"),
        (WorkerSettings, {"topics": []}, "topics=[] names no topic"),
        (WorkerSettings, {"topics": ["a", "b c"]}, "topics: topic 'b c' must consist of"),
        (WorkerSettings, {"topics": [5]}, "topics: topic 5 must consist of"),
        (WorkerSettings, {"name": "a:b"}, "name='a:b' is not valid: worker 'a:b' must consist of"),
        (WorkerSettings, {"name": ""}, "name='' is not valid"),
    ],
)
def test_a_wrong_setting_is_refused_and_named(
    cls: Any, fields: dict[str, Any], expected: str
) -> None:
    url = {"url": URL} if cls is QueueSettings else {}
    with pytest.raises(InvalidInput, match=re.escape(expected)):
        cls(**{**url, **fields})


def test_topics_are_kept_once_each_and_in_order() -> None:
    assert WorkerSettings(topics=["b", "a", "b"]).topics == ("b", "a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cls", "field", "text", "expected"),
    [
        (QueueSettings, "url", "valkey://h", "valkey://h"),
        (QueueSettings, "prefix", "shop", "shop"),
        (QueueSettings, "lease", "2.5", 2.5),
        (QueueSettings, "lease", "60", 60),
        (QueueSettings, "patience", "0", 0),
        (QueueSettings, "max_pending", "1000", 1000),
        (QueueSettings, "dlq_ttl", "1e6", 1_000_000),
        (QueueSettings, "username", "me", "me"),
        (QueueSettings, "password", "a b", "a b"),
        (QueueSettings, "password", "", None),
        (QueueSettings, "password_file", "/run/secrets/queue", "/run/secrets/queue"),
        (QueueSettings, "confirm", "replicated", "replicated"),
        (QueueSettings, "confirm_replicas", "2", 2),
        (QueueSettings, "confirm_within", "0.5", 0.5),
        (QueueSettings, "load_scripts", "false", False),
        (QueueSettings, "load_scripts", "0", False),
        (QueueSettings, "load_scripts", "True", True),
        (WorkerSettings, "concurrency", "5", 5),
        (WorkerSettings, "topics", "a", ("a",)),
        (WorkerSettings, "topics", " a, b.c ,,d", ("a", "b.c", "d")),
        (WorkerSettings, "grace", "0", 0),
        (WorkerSettings, "name", "w1", "w1"),
        (WorkerSettings, "name", "", None),
        (WorkerSettings, "concurrency", "", 100),
    ],
)
def test_a_setting_may_come_from_the_environment(
    cls: Any, field: str, text: str, expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_URL", URL)
    monkeypatch.setenv(f"MX_RMQ_{field.upper()}", text)
    assert getattr(cls.load(), field) == expected


@pytest.mark.parametrize(
    ("cls", "field", "text", "expected"),
    [
        (QueueSettings, "lease", "soon", "MX_RMQ_LEASE='soon' is not a number"),
        (
            QueueSettings,
            "lease",
            "nan",
            "MX_RMQ_LEASE=nan is not a number of seconds (or a timedelta) from 0.1 to 86,400",
        ),
        (
            QueueSettings,
            "lease",
            "0",
            "MX_RMQ_LEASE=0.0 is not a number of seconds (or a timedelta) from 0.1 to",
        ),
        (QueueSettings, "max_payload", "1e6", "MX_RMQ_MAX_PAYLOAD='1e6' is not a whole number"),
        (QueueSettings, "max_payload", "9" * 5000, "MX_RMQ_MAX_PAYLOAD='999"),
        (QueueSettings, "prefix", "{x}", "MX_RMQ_PREFIX='{x}' is not valid"),
        (QueueSettings, "confirm", "yes", "MX_RMQ_CONFIRM='yes' is not valid"),
        (
            QueueSettings,
            "load_scripts",
            "no!",
            "MX_RMQ_LOAD_SCRIPTS='no!' is not true or false",
        ),
        (WorkerSettings, "topics", "a b", "MX_RMQ_TOPICS: topic 'a b' must consist of"),
        (WorkerSettings, "topics", " , ", "MX_RMQ_TOPICS=[] names no topic"),
        (WorkerSettings, "name", "a b", "MX_RMQ_NAME='a b' is not valid"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(
    cls: Any, field: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_URL", URL)
    monkeypatch.setenv(f"MX_RMQ_{field.upper()}", text)
    with pytest.raises(InvalidInput, match=re.escape(expected)) as caught:
        cls.load()
    assert len(str(caught.value)) < 200


def test_argument_goes_before_environment_before_file_before_default(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(empty_place, f'url = "{URL}"\nlease = 3\npatience = 3\nmax_pending = 3\ngrace = 3')
    monkeypatch.setenv("MX_RMQ_LEASE", "2")
    monkeypatch.setenv("MX_RMQ_PATIENCE", "2")
    monkeypatch.setenv("MX_RMQ_MAX_PENDING", "")
    found = QueueSettings.load(lease=1, patience=None)
    assert (found.lease, found.patience, found.max_pending, found.dedup) == (1, 2, 3, 120)
    assert WorkerSettings.load(grace=0).grace == 0
    assert WorkerSettings.load(grace=None).grace == 3


def test_one_file_holds_the_settings_of_queue_and_worker(empty_place: Path) -> None:
    write(
        empty_place,
        f'''
        url = "{URL}"
        lease = 5
        dlq_ttl = 10.5
        topics = ["a", "b"]
        name = "w1"
        concurrency = 3
        ''',
    )
    queue, worker = QueueSettings.load(), WorkerSettings.load()
    assert (queue.url, queue.lease, queue.dlq_ttl) == (URL, 5, 10.5)
    assert (worker.topics, worker.name, worker.concurrency) == (("a", "b"), "w1", 3)


def test_another_file_may_be_named_by_a_variable(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(empty_place, "grace = 1")
    write(empty_place, "grace = 2", "other.toml")
    for named, expected in (("", 1), ("other.toml", 2), (str(empty_place / "other.toml"), 2)):
        monkeypatch.setenv("MX_RMQ_CONFIG", named)
        assert WorkerSettings.load().grace == expected
    monkeypatch.setenv("MX_RMQ_CONFIG", "missing.toml")
    with pytest.raises(InvalidInput, match=r"MX_RMQ_CONFIG='missing.toml': no such file"):
        WorkerSettings.load()
    monkeypatch.setenv("MX_RMQ_CONFIG", str(empty_place))
    with pytest.raises(InvalidInput, match="cannot be read: Is a directory"):
        WorkerSettings.load()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leese = 5", "mx-rmq.toml: 'leese' is not a setting; did you mean 'lease'?"),
        ("max_paylod = 5", "'max_paylod' is not a setting; did you mean 'max_payload'?"),
        ("[worker]\nconcurrency = 5", "mx-rmq.toml: 'worker' is not a setting; did you mean "),
        ("concurrency = '5'", "mx-rmq.toml: concurrency='5' is not a number"),
        ("concurrency = 5.0", "mx-rmq.toml: concurrency=5.0 is not a whole number"),
        ("concurrency = 0", "mx-rmq.toml: concurrency=0 is not between 1 and 10,000"),
        ("grace = true", "mx-rmq.toml: grace=True is not a number"),
        ("grace = 1979-05-27", "mx-rmq.toml: grace=datetime.date(1979, 5, 27) is not a number"),
        ("grace = inf", "mx-rmq.toml: grace=inf is not a number of seconds"),
        ("topics = 'a'", "mx-rmq.toml: topics='a' is not a list of topics"),
        ("topics = [1]", "mx-rmq.toml: topics: topic 1 must consist of"),
        ("name = 5", "mx-rmq.toml: name=5 is not valid"),
        ("grace =", "mx-rmq.toml is not TOML: "),
        ("grace = 1\ngrace = 2", "mx-rmq.toml is not TOML: "),
    ],
)
def test_a_wrong_file_is_refused_and_named(text: str, expected: str, empty_place: Path) -> None:
    write(empty_place, text)
    with pytest.raises(InvalidInput, match=re.escape(expected)):
        WorkerSettings.load()


def test_a_file_that_is_not_utf8_is_refused(empty_place: Path) -> None:
    (empty_place / "mx-rmq.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(InvalidInput, match=r"mx-rmq\.toml is not TOML"):
        WorkerSettings.load()


def test_an_unknown_variable_is_ignored_with_one_warning_that_names_the_closest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for known in ("MX_RMQ_LOG_LEVEL", "MX_RMQ_SERVER_BINARY", "MX_RMQ_OPERATOR"):
        monkeypatch.setenv(known, "x")
    for of_kubernetes in ("MX_RMQ_PORT", "MX_RMQ_PORT_6379_TCP_ADDR", "MX_RMQ_SERVICE_HOST"):
        monkeypatch.setenv(of_kubernetes, "x")
    monkeypatch.setenv("MX_RMQ_CONCURENCY", "5")
    assert WorkerSettings.load() == WorkerSettings()
    assert WorkerSettings.load() == WorkerSettings()
    (warning,) = caplog.messages
    assert "ignoring an environment variable: 'MX_RMQ_CONCURENCY' is not a setting" in warning
    assert "did you mean 'MX_RMQ_CONCURRENCY'?" in warning


def test_an_embedded_server_may_be_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert QueueSettings(url="embedded://~/data").url == "embedded:///home/me/data"
    assert QueueSettings(url="embedded://./~/data").url == "embedded://./~/data"
    assert QueueSettings(url="redis://~/0").url == "redis://~/0"
    with pytest.raises(InvalidInput, match="url: there is no home directory for ~nobody"):
        QueueSettings(url="embedded://~nobody-of-this-name/data")


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="leese"):
        QueueSettings.load(url=URL, leese=5)


def test_a_url_is_never_shown(empty_place: Path) -> None:
    assert SECRET not in repr(QueueSettings(url=URL))
    for wrong in ([URL], {"a": URL}, URL.encode()):
        with pytest.raises(InvalidInput, match="url is of type ") as caught:
            QueueSettings(url=wrong)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
    write(empty_place, f'url = ["{URL}"]')
    with pytest.raises(
        InvalidInput, match=r"mx-rmq\.toml: url is of type list, not a string"
    ) as caught:
        QueueSettings.load()
    assert SECRET not in str(caught.value)
    write(empty_place, f"url = {URL}")
    with pytest.raises(InvalidInput, match=r"mx-rmq\.toml is not TOML") as caught:
        QueueSettings.load()
    assert SECRET not in str(caught.value)


def test_a_password_is_never_shown(empty_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = QueueSettings(url="redis://h", username="me", password=SECRET)
    assert SECRET in settings.address
    assert SECRET not in repr(settings)
    for wrong in ([SECRET], {"a": SECRET}, SECRET.encode()):
        with pytest.raises(InvalidInput, match="password must be a non-empty string") as caught:
            QueueSettings(url="redis://h", password=wrong)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)
    write(empty_place, f'url = "redis://h"\npassword = ["{SECRET}"]')
    with pytest.raises(
        InvalidInput, match=r"mx-rmq\.toml: password must be a non-empty string"
    ) as caught:
        QueueSettings.load()
    assert SECRET not in str(caught.value)
    write(empty_place, f'password = "{SECRET}"')
    monkeypatch.setenv("MX_RMQ_URL", "redis://h")
    monkeypatch.setenv("MX_RMQ_PASSWORD_FILE", "/file")
    with pytest.raises(InvalidInput, match="both set") as caught:
        _ = QueueSettings.load().address
    assert SECRET not in str(caught.value)


def test_the_address_is_the_url_with_the_login_that_is_set_beside_it() -> None:
    assert QueueSettings(url=URL).address == URL
    beside = QueueSettings(url="redis://h", username="me", password=SECRET)
    assert beside.address == f"redis://me:{SECRET}@h"
    assert beside.url == "redis://h"
    assert QueueSettings(url=URL, password="other").address == URL


@pytest.mark.parametrize("settings", [QueueSettings(url=URL), WorkerSettings()])
def test_settings_cannot_be_changed(settings: Any) -> None:
    for field in fields(settings):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, field.name, 1)


# whom a file is believed, and where a login goes


def test_a_file_that_others_may_write_is_refused(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(empty_place, "grace = 1")
    file = empty_place / "mx-rmq.toml"
    for mode in (0o664, 0o646, 0o666):
        file.chmod(mode)
        with pytest.raises(
            InvalidInput,
            match=r"^\S*mx-rmq\.toml can be written by other users.*chmod go-w",
        ):
            WorkerSettings.load()
    for mode in (0o600, 0o644, 0o444):
        file.chmod(mode)
        assert WorkerSettings.load().grace == 1
    monkeypatch.setenv("MX_RMQ_CONFIG", "mx-rmq.toml")
    file.chmod(0o664)  # a group of theirs: whoever names the file knows it
    assert WorkerSettings.load().grace == 1
    file.chmod(0o646)
    with pytest.raises(InvalidInput, match="written by other users"):
        WorkerSettings.load()
    monkeypatch.setenv("MX_RMQ_CONFIG", os.devnull)  # the way to have no file
    assert WorkerSettings.load().grace == 30


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_of_another_user_is_refused(
    linked: bool, empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if linked:
        write(empty_place, "grace = 1", "ours.toml")
        (empty_place / "mx-rmq.toml").symlink_to("ours.toml")
    else:
        write(empty_place, "grace = 1")
    assert WorkerSettings.load().grace == 1
    if os.geteuid() == 0:
        os.chown(empty_place / "mx-rmq.toml", 65534, 65534, follow_symlinks=False)
    else:  # only root can give a file away: be another user than its owner instead
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(InvalidInput, match=r"mx-rmq\.toml belongs to another user \(uid \d+\)"):
        WorkerSettings.load()
    monkeypatch.setenv("MX_RMQ_CONFIG", "mx-rmq.toml")
    assert WorkerSettings.load().grace == 1


LOGINS = {"username": "me", "password": SECRET, "password_file": "/run/secrets/queue"}


@pytest.mark.parametrize("name", LOGINS)
def test_a_login_never_goes_to_a_server_that_a_weaker_source_names(
    name: str, empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, value = f"MX_RMQ_{name.upper()}", LOGINS[name]
    write(empty_place, 'url = "redis://stranger"')
    expected = (
        f"{name} is not sent to a URL that comes from mx-rmq.toml: pass the URL as an argument"
    )
    with pytest.raises(InvalidInput, match=expected):
        QueueSettings.load(**{name: value})
    monkeypatch.setenv(variable, value)
    expected = (
        f"{variable} is not sent to a URL that comes from mx-rmq.toml: pass the URL as MX_RMQ"
    )
    with pytest.raises(InvalidInput, match=expected):
        QueueSettings.load()
    monkeypatch.setenv("MX_RMQ_URL", "redis://h")
    assert getattr(QueueSettings.load(), name) == value
    monkeypatch.delenv(variable)
    expected = f"{name} is not sent to a URL that comes from the environment"
    with pytest.raises(InvalidInput, match=expected):
        QueueSettings.load(**{name: value})
    assert getattr(QueueSettings.load(url="redis://h", **{name: value}), name) == value


@pytest.mark.parametrize("name", LOGINS)
def test_a_login_goes_to_a_server_that_its_own_or_a_stronger_source_names(
    name: str, empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(empty_place, f'url = "redis://h"\n{name} = "{LOGINS[name]}"')
    assert LOGINS[name] in QueueSettings.load().address
    assert LOGINS[name] in QueueSettings.load(url="redis://other").address
    write(empty_place, 'url = "redis://h"')
    monkeypatch.setenv("MX_RMQ_CONFIG", "mx-rmq.toml")  # to name it is to trust it
    monkeypatch.setenv(f"MX_RMQ_{name.upper()}", LOGINS[name])
    assert LOGINS[name] in QueueSettings.load().address


def test_a_login_that_the_url_does_not_need_is_no_mistake(
    empty_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_RMQ_PASSWORD", SECRET)
    for url in ("redis://:own@h", "embedded://./data", "redis://h?password_file=/run/own"):
        write(empty_place, f'url = "{url}"')
        assert QueueSettings.load().address == url


def test_a_secret_of_several_lines_is_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_RMQ_URL", "redis://h")
    for text in (f"-----BEGIN\n{SECRET}", f"{SECRET}\r", "a\0b"):
        with pytest.raises(InvalidInput, match="password has more than one line") as caught:
            QueueSettings(url="redis://h", password=text)
        assert SECRET not in str(caught.value)
