"""Masks: nothing of a named field is shown, and everything else is."""

from __future__ import annotations

import json
from collections import UserDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_rmq.core.errors import InvalidInput
from mx_rmq.core.mask import HIDDEN, MAX_STEPS, REST, Mask
from tests.lab.growth import grows_gently

SECRET = "hunter2"

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "items", "card", "n"]), inner, max_size=3)
    ),
    max_leaves=10,
)
telling = st.sampled_from(
    (
        *("password", "PassWord", "user_password", "access_token", "accessToken", "X-Api-Key"),
        *("client-secret", "Authorization", "Set-Cookie", "IBAN", "i_b_a_n", "tokens", "apiKeys"),
        *("cardNumbers", "card number", "pwd", "token_value", "authorizationHeader", "accessKey"),
        *("private_key_pem", "password.old", "old.password"),
    )
)


def planted(value: Any, name: str, *, into: Any) -> Any:
    """Put a field at the bottom of a value, along its first items."""
    if isinstance(into, dict) and into:
        first = next(iter(into))
        return {**into, first: planted(value, name, into=into[first])}
    if isinstance(into, list) and into:
        return [planted(value, name, into=into[0]), *into[1:]]
    return {name: value}


@given(plain, telling, st.sampled_from([SECRET, [SECRET], {"n": SECRET}]))
def test_nothing_under_a_telling_name_is_shown_at_any_depth(
    value: Any, name: str, secret: Any
) -> None:
    shown = Mask(["iban"])(planted(secret, name, into=value))
    assert shown == planted(HIDDEN, name, into=value)
    assert SECRET not in json.dumps(shown)


@given(plain)
def test_what_has_no_telling_name_stays_as_it_is(value: Any) -> None:
    assert Mask(["card.number"])(value) == value


def test_a_path_hides_a_field_only_there() -> None:
    value = {
        "card": {"number": 1, "all": [{"number": 2}]},
        "number": 3,
        "a": {"Card": [{"number": 4}]},
    }
    assert Mask(["card.number"])(value) == {
        "card": {"number": HIDDEN, "all": [{"number": 2}]},
        "number": 3,
        "a": {"Card": [{"number": HIDDEN}]},
    }
    assert Mask(["card.*"])(value)["card"] == {"number": HIDDEN, "all": HIDDEN}
    assert Mask(["card.number"])({"card.number": 1}) == {"card.number": HIDDEN}
    assert Mask()({"cvc": 1, "cvcs": 2, "n": "cvc"}) == {"cvc": HIDDEN, "cvcs": 2, "n": "cvc"}


def test_objects_are_masked_by_their_fields() -> None:
    @dataclass
    class User:
        name: str
        password: str

    class Model(pydantic.BaseModel):
        api_key: str

    class Login(NamedTuple):
        user: str
        password: str

    @dataclass
    class Session:
        login: Login

    class Struct(msgspec.Struct, rename={"kept": "password"}):
        kept: str
        login: Login

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    login = Login("ann", SECRET)
    hidden = {"user": "ann", "password": HIDDEN}
    assert Mask()([login, Session(login), Struct(SECRET, login)]) == [
        hidden,
        {"login": hidden},
        {"password": HIDDEN, "login": hidden},
    ]
    shown = Mask()([User("ann", SECRET), Model(api_key=SECRET), LookupError("x"), float("nan")])
    assert shown == [
        {"name": "ann", "password": HIDDEN},
        {"api_key": HIDDEN},
        "x",
        "nan",
    ]
    assert Mask()([Odd()]) == "<list that cannot be shown: RuntimeError>"


def test_keys_may_be_bytes_and_fields_pairs() -> None:
    assert Mask()({b"password": SECRET, b"\xff": 1, 2: 3}) == {
        "password": HIDDEN,
        "\\xff": 1,
        "2": 3,
    }
    assert Mask()(deque([UserDict(password=SECRET)])) == [{"password": HIDDEN}]
    headers = [["Authorization", SECRET], (b"cookie", SECRET), ["Accept", "*/*"]]
    assert Mask()({"headers": headers}) == {
        "headers": [["Authorization", HIDDEN], ["cookie", HIDDEN], ["Accept", "*/*"]]
    }


def test_what_json_cannot_hold_is_shown_by_a_text() -> None:
    shown = Mask()([10**5000, float("-inf"), {1}, b"x", datetime(2030, 1, 1, tzinfo=UTC), 10**50])
    assert shown == ["<int of 16610 bits>", "-inf", [1], "eA==", "2030-01-01T00:00:00Z", 10**50]


def test_what_contains_itself_does_no_harm() -> None:
    endless: dict[str, Any] = {}
    endless["n"] = endless
    assert "cannot be shown" in Mask()(endless)
    assert "cannot be shown" in Mask()({(1, 2): SECRET})


@pytest.mark.parametrize("name", ["", "card..number", ".number", "-"])
def test_a_mask_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="is not a field name"):
        Mask([name])


def test_a_text_is_no_list_of_masks() -> None:
    with pytest.raises(InvalidInput, match="pass a list"):
        Mask("password")


# keys and payloads that are made to keep a worker busy


def test_stars_match_as_they_should() -> None:
    name = {"a": 1, "ab": 1, "abab": 1, "b": 1, "aab": 1}
    for mask, hidden in {
        "a*b": ["ab", "abab", "aab"],
        "*ab*ab": ["abab"],
        "*a*a*": ["abab", "aab"],
        "a*": ["a", "ab", "abab", "aab"],
        "ab*b": ["abab"],
        "*": [*name],
        "**": [*name],
    }.items():
        assert [one for one, value in Mask([mask])(name).items() if value == HIDDEN] == hidden


@pytest.mark.parametrize(
    ("masks", "payload"),
    [
        ([], lambda size: {"a." * (size // 2): 1}),
        ([], lambda size: {"." * size: 1}),
        ([], lambda size: {"a" * size: 1}),
        (["*a*a*a*a*b"], lambda size: {"a" * size: 1}),
        (["*.*.*.*a*.b"], lambda size: {"a." * (size // 2): 1}),
        (["*a.*a.*a.b"], lambda size: {"aaa." * (size // 4): 1}),
        ([], lambda size: [["a." * (size // 2), 1]]),
        ([], lambda size: [{f"a.{n}": n} for n in range(size // 10)]),
        ([], lambda size: _nested("a." * (size // 100), 50)),
    ],
    ids=range(9),
)
def test_no_key_makes_masking_slow(masks: list[str], payload: Any) -> None:
    grows_gently(Mask(masks), payload)


def _nested(name: str, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {name: value}
    return value


def test_of_a_very_large_payload_the_rest_is_left_out() -> None:
    assert Mask()([*range(MAX_STEPS)]) == [*range(MAX_STEPS)]
    assert Mask()([*range(2 * MAX_STEPS)]) == [*range(MAX_STEPS), REST]
    shown = Mask()([{"n": n, "password": n} for n in range(2 * MAX_STEPS)])
    assert shown[-1] == REST
    assert shown[0] == {"n": 0, "password": HIDDEN}
    assert shown[MAX_STEPS // 10] == {"n": MAX_STEPS // 10, "password": HIDDEN}
    assert Mask()({"a." * MAX_STEPS: SECRET, "b": SECRET}) == {"a." * MAX_STEPS: HIDDEN, REST: REST}
