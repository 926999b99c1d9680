"""Whether the server is there."""

from __future__ import annotations

import pytest

from mx_rmq.net import availability as link_module
from mx_rmq.net.availability import AWAY_AFTER, Link, Links

GONE = OSError("refused")


class Watched(Link):
    """A link on a clock of the test's, and what it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.told: list[object] = []
        self.on_lost = self.told.append
        self.on_back = self.told.append

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Watched:
    link = Watched()
    monkeypatch.setattr(link_module, "time", link)
    return link


def lose(clock: Watched, link: Link, error: Exception = GONE) -> None:
    """Let a link fail for so long that it counts as lost."""
    link.failed(error)
    clock.now += AWAY_AFTER
    link.failed(error)


def test_a_blip_is_told_to_nobody(link: Watched) -> None:
    link.failed(GONE)
    link.now += AWAY_AFTER - 0.01
    link.failed(GONE)
    link.answered()
    assert link.told == []
    assert link.back_at == float("-inf")


def test_a_server_that_is_away_and_back_is_told_once_each(link: Watched) -> None:
    link.failed(GONE)
    for _ in range(5):
        link.now += AWAY_AFTER
        link.failed(GONE)
    link.now += 1
    link.answered()
    link.answered()
    assert link.told == ["refused", 6 * AWAY_AFTER]
    assert link.back_at == link.now


def test_an_answer_in_between_begins_the_count_anew(link: Watched) -> None:
    for _ in range(10):
        link.failed(GONE)
        link.now += AWAY_AFTER / 2
        link.answered()
    assert link.told == []


def test_one_failure_however_long_ago_is_no_absence(link: Watched) -> None:
    link.failed(GONE)
    link.now += 1000
    link.answered()
    assert link.told == []


def test_a_link_that_nobody_watches_works_too() -> None:
    link = Link()
    link.failed(GONE)
    link.answered()
    link.answered()
    assert link.back_at == float("-inf")


def test_it_may_be_lost_again(link: Watched) -> None:
    for _ in range(2):
        link.failed(GONE)
        link.now += AWAY_AFTER
        link.failed(GONE)
        link.answered()
    assert len(link.told) == 4


# many sites


def test_every_site_has_a_link_of_its_own(link: Watched) -> None:
    links = Links()
    lose(link, links[7])
    links[7].answered()
    assert links[7] is not links[8]
    assert links[7].back_at == link.now
    assert links[8].back_at == float("-inf")


def test_that_servers_are_away_is_told_once_and_that_all_are_back_once(link: Watched) -> None:
    links = Links()
    told: list[object] = []
    links.on_lost = links.on_back = told.append
    lose(link, links[0], OSError("first"))
    lose(link, links[1], OSError("second"))
    links[0].answered()
    assert told == ["first"], "one of them is still away"
    link.now += 2
    links[1].answered()
    assert told == ["first", AWAY_AFTER + 2]


def test_links_that_nobody_watches_work_too(link: Watched) -> None:
    links = Links()
    lose(link, links[0])
    links[0].answered()
    assert links[0].back_at == link.now


def test_who_watches_later_hears_of_what_comes_later(link: Watched) -> None:
    links = Links()
    lose(link, links[0])
    links.on_lost = links.on_back = link.told.append
    links[0].answered()
    lose(link, links[0])
    assert link.told == [AWAY_AFTER, "refused"]
