"""How to test the application: with the testing kit of mx-rmq and the test client of Flask.

In the directory above: python -m pytest flask_newsletter
"""

import json
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import Any

import pytest
from flask.testing import FlaskClient

from flask_newsletter import newsletter
from flask_newsletter.app import app
from flask_newsletter.newsletter import mq
from mx_rmq import MessageQueue
from mx_rmq.testing import assert_produced, drain

pytest_plugins = ["mx_rmq.testing"]


@pytest.fixture
def client(mx_rmq_use: Callable[..., MessageQueue], monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """The application on a test server. A test drains the queue itself."""
    monkeypatch.setattr(newsletter, "MAIL_SECONDS", 0.01)
    mx_rmq_use(mq)
    return app.test_client()


def ordered(client: FlaskClient, **issue: Any) -> str:
    answer = client.post("/issues", json=issue)
    assert answer.status_code == 202
    return str(answer.json["id"])  # type: ignore[index]  # it is JSON


def statuses(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the statuses that the server sent, until the event that ends them."""
    for chunk in chunks:
        if chunk.startswith(b"event: end"):
            return
        if chunk.startswith(b"data: "):
            yield json.loads(chunk.removeprefix(b"data: "))
    pytest.fail("the stream had no end")


def test_an_order_is_produced_and_a_drain_sends_it(client: FlaskClient) -> None:
    id = ordered(client, subject="Hello", readers=3)
    assert_produced(mq, "issue.ready", {"subject": "Hello", "readers": 3}, id=id)
    assert drain(mq).completed == 1
    assert client.get(f"/issues/{id}").json == {"sent": 3}


def test_progress_comes_as_events_until_it_is_sent(client: FlaskClient) -> None:
    id = ordered(client, subject="Hello", readers=60)
    worker = Thread(target=drain, args=(mq,))
    worker.start()
    answer = client.get(f"/issues/{id}/events")
    assert answer.content_type.startswith("text/event-stream")
    *before, last = statuses(answer.response)  # type: ignore[arg-type]  # of bytes
    worker.join()
    assert any(status["note"].endswith("of 60 mails") for status in before)
    assert last["state"] == "completed"


def test_an_issue_that_is_being_sent_can_be_stopped(client: FlaskClient) -> None:
    id = ordered(client, subject="Hello", readers=100_000)
    worker = Thread(target=drain, args=(mq,))
    worker.start()
    events = statuses(client.get(f"/issues/{id}/events").response)  # type: ignore[arg-type]  # of bytes
    assert any(status["progress"] for status in events)
    assert client.delete(f"/issues/{id}").json == {"aborted": True}
    worker.join()
    assert client.delete(f"/issues/{id}").json == {"aborted": False}
    answer = client.get(f"/issues/{id}")
    assert answer.status_code == 410
    assert "aborted: stopped by the editor" in answer.text
    events.close()  # type: ignore[attr-defined]  # a generator


def test_what_is_unknown_or_wrong_is_refused(client: FlaskClient) -> None:
    assert client.get("/issues/never-ordered").status_code == 404
    answer = client.post("/issues", json={"readers": 3})
    assert answer.status_code == 422
    assert "missing required field `subject`" in answer.text
    assert list(statuses(client.get("/issues/never-ordered/events").response)) == []  # type: ignore[arg-type]  # of bytes
