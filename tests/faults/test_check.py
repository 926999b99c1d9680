"""Tests the checker: it must report a scene with a deliberate bug, and no other scene.

And small handwritten histories, one per violation.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mx_rmq.core.message import Priority
from tests.faults.bugs import BUGS, NO_TOKEN_CHECK, TIME_OUT_REMOVES, TWO_STEP_DISPATCH
from tests.faults.check import Checked, Ends, check, check_fences
from tests.faults.errand import End, Errand, Mix
from tests.faults.history import Journal, Note, What, read
from tests.faults.scene import Scene
from tests.faults.trial import Trial
from tests.faults.zombies import EXTENDS_AFTER, make_zombie
from tests.lab.crew import until
from tests.lab.servers import Kind, Server

if TYPE_CHECKING:
    from pathlib import Path

GUILTY = {
    NO_TOKEN_CHECK: ("a stale settle was accepted", "delivered after its end", "settled twice"),
    TIME_OUT_REMOVES: ("lost", "record without a state", "stuck"),
    TWO_STEP_DISPATCH: ("lost", "record without a state", "stuck", "leased by two"),
}


@pytest.mark.parametrize("bug", ["", *BUGS])
async def test_a_scene_with_a_bug_is_reported(bug: str, short_path: Path) -> None:
    trial = Trial("check", 14 if bug == NO_TOKEN_CHECK else 6, 1, short_path)
    mix = Mix(failing=0, dead=0, quarantined=0, delayed=0, work=1_000)
    with Server(Kind.VALKEY_9_1, short_path / "server") as server:
        # Without a bug only a victim may lose a lease, however busy the machine is.
        async with Scene(trial, server, lease=0.5 if bug else 1.5, bug=bug) as scene:
            scene.hire(3, extends_after=EXTENDS_AFTER)
            scene.produce(trial.size * 20, mix=mix, most=5, backlog=50, paced=True)
            for number in range(trial.size):
                scene.allow((number + 1) / trial.size)
                if (
                    number % 2 or bug == NO_TOKEN_CHECK
                ):  # only a zombie settles what it no longer holds
                    await make_zombie(scene, *await scene.catch())
                else:
                    scene.kill(*await scene.catch())
                    scene.hire(extends_after=EXTENDS_AFTER)
            await scene.settle(within=60 if not bug else 5)
            await scene.check()
    if not bug:
        assert trial.violations == []
    else:
        found = " ".join(trial.violations)
        assert any(word in found for word in GUILTY[bug]), trial.violations


async def test_a_worker_that_dies_on_its_own_is_reported(short_path: Path) -> None:
    trial = Trial("check", 1, 1, short_path)
    with Server(Kind.VALKEY_9_1, short_path / "server") as server:
        async with Scene(trial, server) as scene:
            (one, other) = scene.hire(2)
            scene.produce(20)
            one.send(signal.SIGKILL)
            await until(lambda: not one.is_alive())
            await scene.stop(other)
            scene.hire()
            await scene.settle(within=60)
            checked = await scene.check()
            scene.hands.remove(one)
    assert [found for found in trial.violations if "died on its own" in found], checked


# handwritten histories

LABEL = Errand("p1", 0, "work", End.COMPLETED, 0, Priority.NORMAL, 0, 0).label
DELAYED = Errand("p1", 1, "work", End.COMPLETED, 0, Priority.NORMAL, 500, 0).label
DEADLY = Errand("p1", 3, "work", End.DEAD, 2, Priority.NORMAL, 0, 0).label
SECOND = Errand("p1", 2, "work", End.COMPLETED, 0, Priority.NORMAL, 0, 0).label


class Story:
    """Notes, one per second."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def _add(self, what: What, who: str, **fields: object) -> Story:
        self.notes.append(Note(what, float(len(self.notes)), who, **fields))  # type: ignore[arg-type]
        return self

    def produced(self, label: str = LABEL, id: str = "a") -> Story:
        self._add(What.PRODUCE, "p1", words=[label])
        return self._add(What.PRODUCED, "p1", ids=[id], words=[label])

    def doubted(self, what: What, label: str = LABEL) -> Story:
        self._add(What.PRODUCE, "p1", words=[label])
        return self._add(what, "p1", words=[label])

    def leased(self, who: str, token: int, id: str = "a", lost_by: str = "") -> Story:
        what = What.TAKEN_OVER if lost_by else What.LEASED
        return self._add(what, who, ids=[id], tokens=[token], words=[lost_by] if lost_by else [])

    def ran(
        self, who: str, token: int, id: str = "a", label: str = LABEL, attempt: int = 1
    ) -> Story:
        self._add(What.START, who, ids=[id], tokens=[token], words=[label, str(attempt)])
        return self._add(What.END, who, ids=[id], tokens=[token], words=[label])

    def settled(
        self,
        who: str,
        token: int,
        answer: str = "1",
        script: str = "complete_message",
        id: str = "a",
    ) -> Story:
        call = len(self.notes)
        self._add(What.CALL, who, call=call, script=script, ids=[id], tokens=[token])
        if not answer:
            return self
        words = [answer]
        return self._add(
            What.ANSWER, who, call=call, script=script, ids=[id], tokens=[token], words=words
        )

    def killed(self, who: str) -> Story:
        return self._add(What.KILLED, who)

    def frozen(self, who: str) -> Story:
        return self._add(What.FROZEN, who)

    def starved(self, who: str) -> Story:
        return self._add(What.STARVED, who, since=float(len(self.notes)) - 0.5)

    def verdict(self, labels: dict[str, str] | None = None, **ends: set[str]) -> list[str]:
        return sorted(check(self.notes, Ends(**ends, labels=labels or {})).found)


def handled() -> Story:
    return Story().produced().leased("w1", 1).ran("w1", 1)


def test_a_plain_life_is_accepted() -> None:
    assert handled().settled("w1", 1).verdict() == []


def test_a_life_over_two_workers_is_accepted_if_the_first_was_killed() -> None:
    story = handled().killed("w1").leased("w2", 2, lost_by="w1")
    story.settled("w2", 2, script="retry_message").leased("w2", 3).ran("w2", 3, attempt=2)
    assert story.settled("w2", 3).verdict() == []


def test_a_lost_message_is_found() -> None:
    assert handled().verdict() == ["lost"]


def test_an_unanswered_complete_may_have_been_done() -> None:
    assert handled().settled("w1", 1, answer="").verdict() == []


def test_a_completed_message_that_is_still_there_is_found() -> None:
    assert "in two states" in handled().settled("w1", 1).verdict(pending={"a"})


def test_a_message_in_two_states_is_found() -> None:
    assert "in two states" in handled().verdict(pending={"a"}, dead={"a"})


def test_a_message_that_never_ends_is_found() -> None:
    assert handled().verdict(processing={"a"}) == ["not ended"]


def test_a_message_that_ends_differently_than_planned_is_found() -> None:
    assert handled().settled("w1", 1, script="move_to_dlq").verdict(dead={"a"}) == [
        "ended otherwise"
    ]


def test_a_stale_complete_that_is_accepted_is_found() -> None:
    story = handled().leased("w2", 2, lost_by="w1").settled("w1", 1)
    assert "a stale settle was accepted" in story.verdict()


def test_a_stale_complete_that_is_refused_is_accepted() -> None:
    story = Story().produced().leased("w1", 1).frozen("w1").leased("w2", 2, lost_by="w1")
    story.settled("w2", 2, script="retry_message").leased("w2", 3).ran("w2", 3).settled("w2", 3)
    assert story.settled("w1", 1, answer="0").verdict() == []


@pytest.mark.parametrize(("who", "verdict"), [("w1", []), ("w2", ["a lease lost without a cause"])])
def test_a_lease_may_be_lost_by_a_process_that_did_not_run(who: str, verdict: list[str]) -> None:
    story = Story().produced().leased("w1", 1).starved(who).leased("w2", 2, lost_by="w1")
    story.settled("w2", 2, script="retry_message").leased("w2", 3).ran("w2", 3).settled("w2", 3)
    assert story.verdict() == verdict


@pytest.mark.parametrize(("ago", "lost"), [(1.5, ["lost"]), (20.0, [])])
def test_a_server_that_is_killed_may_forget_the_last_moments(ago: float, lost: list[str]) -> None:
    story = Story().produced()._add(What.TROUBLE, "")  # the reply came after a second
    story._add(What.FORGOT, "", since=len(story.notes) - ago)
    assert story.verdict() == lost


def test_what_a_killed_server_forgot_may_be_done_again() -> None:
    story = handled().settled("w1", 1)._add(What.TROUBLE, "")._add(What.FORGOT, "", since=0.0)
    assert story.leased("w2", 2).ran("w2", 2).settled("w2", 2).verdict() == []


def test_two_leases_at_once_are_found() -> None:
    story = Story().produced().leased("w1", 1).leased("w2", 2).ran("w2", 2).settled("w2", 2)
    assert story.verdict() == ["leased by two"]


def test_a_delivery_after_the_end_is_found() -> None:
    story = handled().settled("w1", 1).leased("w2", 2)
    assert "delivered after its end" in story.verdict()


def test_one_token_for_two_deliveries_is_found() -> None:
    story = Story().produced().leased("w1", 1).leased("w2", 1).ran("w2", 1).settled("w2", 1)
    assert story.verdict() == ["one token, two deliveries"]


def test_two_settles_of_one_token_are_found() -> None:
    story = handled().settled("w1", 1, script="retry_message").settled("w1", 1)
    assert story.verdict() == ["settled twice"]


def test_a_second_run_without_a_cause_is_found() -> None:
    story = handled().settled("w1", 1, script="retry_message").leased("w2", 2).ran("w2", 2)
    assert story.settled("w2", 2).verdict() == ["a run without a cause"]


def test_attempts_that_decrease_are_found() -> None:
    story = Story().produced().leased("w1", 1).ran("w1", 1, attempt=2).killed("w1")
    story.leased("w2", 2, lost_by="w1").settled("w2", 2, script="retry_message")
    story.leased("w2", 3).ran("w2", 3, attempt=1).settled("w2", 3)
    assert story.verdict() == ["attempts go back"]


def test_a_label_under_two_ids_is_found() -> None:
    story = handled().settled("w1", 1).leased("w1", 2, id="b").ran("w1", 2, id="b")
    assert "produced twice" in story.settled("w1", 2, id="b").verdict()


def test_a_run_of_a_message_that_was_never_produced_is_found() -> None:
    story = Story().leased("w1", 1).ran("w1", 1).settled("w1", 1)
    assert story.verdict() == ["run, but never produced"]


def test_a_refused_message_that_runs_is_found() -> None:
    story = Story().doubted(What.REFUSED).leased("w1", 1).ran("w1", 1).settled("w1", 1)
    assert story.verdict() == ["refused, yet stored"]


def test_a_refused_message_that_exists_is_found() -> None:
    story = Story().doubted(What.REFUSED, DEADLY)
    assert story.verdict({"a": DEADLY}, dead={"a"}) == ["refused, yet stored"]


def test_a_message_of_unknown_fate_may_run_although_a_later_try_was_refused() -> None:
    story = Story().doubted(What.UNKNOWN).doubted(What.REFUSED)
    assert story.leased("w1", 1).ran("w1", 1).settled("w1", 1).verdict() == []


def test_a_message_of_unknown_fate_may_exist_once() -> None:
    story = Story().doubted(What.UNKNOWN, DEADLY)
    assert story.verdict() == []
    assert story.verdict({"a": DEADLY}, dead={"a"}) == []


@pytest.mark.parametrize("where", ["dead", "quarantined", "pending", "delayed", "processing"])
def test_a_message_that_was_never_produced_is_found(where: str) -> None:
    for labels in {}, {"ghost": LABEL}:
        assert Story().verdict(labels, **{where: {"ghost"}}) == ["there, but never produced"]


def test_two_copies_of_a_message_of_unknown_fate_are_found() -> None:
    story = Story().doubted(What.UNKNOWN, DEADLY)
    labels = {"a": DEADLY, "b": DEADLY}
    assert story.verdict(labels, dead={"a", "b"}) == ["produced twice"]


def test_a_second_copy_of_an_acknowledged_message_is_found_even_if_it_never_ran() -> None:
    story = Story().produced(DEADLY)
    labels = {"a": DEADLY, "b": DEADLY}
    assert story.verdict(labels, dead={"a", "b"}) == ["produced twice"]


def test_a_message_of_unknown_fate_that_was_stored_and_is_gone_is_found() -> None:
    story = Story().doubted(What.UNKNOWN).leased("w1", 1).ran("w1", 1)
    assert story.verdict() == ["lost"]


@pytest.mark.parametrize(
    ("attempts", "verdict"),
    [
        ([("a", 1, True), ("a", 3, True), ("a", 1, False)], []),
        ([("a", 1, True)], ["another's side effect"]),
        ([("a", 3, True), ("a", 1, True)], ["another's side effect"]),
        ([("a", 3, True), ("a", 5, True)], ["another's side effect"]),
        ([], ["another's side effect"]),
    ],
)
def test_the_last_write_to_a_resource_is_from_the_completing_delivery(
    attempts: list[tuple[str, int, bool]], verdict: list[str]
) -> None:
    checked = Checked(completed={"a": 3})
    check_fences(attempts, checked)
    assert sorted(checked.found) == verdict


def test_the_completing_delivery_is_known_by_its_token() -> None:
    story = handled().settled("w1", 1, answer="").killed("w1").leased("w2", 2, lost_by="w1")
    story.settled("w2", 2, script="retry_message").leased("w2", 3).ran("w2", 3, attempt=2)
    assert check(story.settled("w2", 3).notes, Ends()).completed == {"a": 3}


def test_a_run_before_the_due_time_is_found() -> None:
    story = Story().produced(DELAYED)
    story.notes[-1].at = 0.1
    story.leased("w1", 1)
    story.notes[-1].at = 0.4
    assert "before its due time" in story.ran("w1", 1, label=DELAYED).settled("w1", 1).verdict()


def test_messages_out_of_order_are_found() -> None:
    story = Story().produced().produced(SECOND, id="b")
    story.leased("w1", 1, id="b").leased("w1", 2)
    story.ran("w1", 1, id="b", label=SECOND).ran("w1", 2)
    assert story.settled("w1", 1, id="b").settled("w1", 2).verdict() == ["out of order"]


def test_a_complete_without_a_run_is_found() -> None:
    story = Story().produced().leased("w1", 1).settled("w1", 1)
    assert story.verdict() == ["completed before its end"]


def test_a_complete_before_the_end_of_the_run_is_found() -> None:
    story = Story().produced().leased("w1", 1).settled("w1", 1).ran("w1", 1)
    assert story.verdict() == ["completed before its end"]


def test_a_second_run_by_the_same_token_is_found() -> None:
    assert handled().ran("w1", 1).settled("w1", 1).verdict() == ["run twice by one token"]


def test_a_loss_is_not_excused_by_the_unanswered_complete_of_an_older_holder() -> None:
    story = handled().settled("w1", 1, answer="").killed("w1").leased("w2", 2, lost_by="w1")
    assert story.verdict() == ["lost"]


def test_a_lease_that_a_live_worker_loses_is_found() -> None:
    story = Story().produced().leased("w1", 1).leased("w2", 2, lost_by="w1")
    story.settled("w2", 2, script="retry_message").leased("w2", 3).ran("w2", 3, attempt=2)
    assert story.settled("w2", 3).killed("w1").verdict() == ["a lease lost without a cause"]


def test_a_complete_that_is_refused_although_no_one_else_had_it_is_found() -> None:
    verdict = handled().settled("w1", 1, answer="0").verdict()
    assert verdict == ["lost", "refused, though no one else had it"]


def test_an_attempt_that_never_happened_is_found() -> None:
    story = Story().produced().leased("w1", 1).ran("w1", 1, attempt=2).settled("w1", 1)
    assert story.verdict() == ["attempts burnt"]


def test_an_attempt_of_a_worker_that_died_before_its_note_is_accepted() -> None:
    story = Story().produced().killed("w0").leased("w1", 2, lost_by="w0")
    story.settled("w1", 2, script="retry_message").leased("w1", 3).ran("w1", 3, attempt=2)
    assert story.settled("w1", 3).verdict() == []


def test_a_settle_by_another_worker_is_found() -> None:
    assert "not its own" in handled().settled("w2", 1).verdict()


@pytest.mark.parametrize("what", [What.TROUBLE, What.CALM])
def test_a_start_may_be_given_up_only_while_the_server_is_away(what: What) -> None:
    story = Story()._add(What.TROUBLE, "")
    if what is What.CALM:
        story._add(What.CALM, "")
    found = story._add(What.GAVE_UP, "w1", words=["ServerUnavailable()"]).verdict()
    assert found == ([] if what is What.TROUBLE else ["a worker gave up"])


def test_an_attempt_of_the_worker_that_had_it_before_is_accepted() -> None:
    story = handled().settled("w1", 1, script="retry_message").killed("w1")
    story.notes[3].what = What.FAIL
    story.leased("w2", 3, lost_by="w1").settled("w2", 3, script="retry_message")
    story.leased("w2", 4).ran("w2", 4, attempt=3)
    assert story.settled("w2", 4).verdict() == []


def test_an_attempt_of_a_worker_whose_retry_got_no_reply_is_accepted() -> None:
    story = Story().produced().killed("w0").leased("w1", 2, lost_by="w0")
    story.settled("w1", 2, script="retry_message", answer="").killed("w1")
    story.leased("w2", 4, lost_by="w1").settled("w2", 4, script="retry_message")
    story.leased("w2", 5).ran("w2", 5, attempt=3)
    assert story.settled("w2", 5).verdict() == []


def test_a_line_that_was_torn_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history"
    Journal(path, "w1").note(What.START, ids=["a"])
    with path.open("ab") as history:
        history.write(b'\n["start",1.0,"w2",0,"",["torn"]')
    Journal(path, "w3").note(What.END, ids=["a"])
    assert [note.who for note in read(path)] == ["w1", "w3"]
