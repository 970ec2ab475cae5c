"""The live page says of each run all that is known, and no text of a run becomes markup."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from qafel.watch.page import Painter
from tests.watch.states import live_state, watched

EVIL = '<img src=x onerror="document.title=1"></script>&\'"'


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def test_a_running_run_shows_all_that_is_asked_of_it():
    text = words(Painter().picture([watched(live=live_state())]).figures)
    for part in (
        *("mine running", "0.599 accuracy", "target 0.850, in about 4 min", "40 % done: 40 server steps"),
        *("ends in about 30 s", "uploads 400", "rate 20/s", "up 40 kB", "broadcast 4 kB", "buffer 3 of 10"),
        *("hidden-state lag 0.0123", "staleness mean 0.300, max 2"),
        *("rejected 1 bad-signature, 2 stale; 5 repeats, counted once"),
        *("8 of 10 clients train, 1 silent, 1 idle", "2 4 behind", "7 90 s"),
    ):
        assert part in text, part


def test_a_finished_run_shows_its_summary():
    summary = {"status": "finished", "rejected": {}, "repeated": 0, "wall_s": 61.0, "updates_per_s": 6.5}
    summary |= {"upload_bytes_total": 41_000, "target": 0.5}
    text = words(Painter().picture([watched(summary=summary, heard_s=9999.0)]).figures)
    for part in ("finished", "target 0.500, reached after 150 uploads", "40 server steps in 61 s", "up 41 kB", "none"):
        assert part in text, part
    assert "clients" not in text
    assert "silent" not in text


def test_what_is_not_known_is_said_so():
    one = watched(live=None, heard_s=100.0)
    text = words(Painter().picture([one]).figures)
    for part in ("silent for 1 min 40 s", "rejected –", "buffer –"):
        assert part in text, part
    crowd = live_state(clients=10**6, training_count=10**6, silent={}, silent_count=None, training={})
    assert "1 M of 1 M clients train, silent: not counted" in words(Painter().picture([watched(live=crowd)]).figures)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": None}, "no target"),
        ({"updates_per_s": 0.0}, "too early"),
        ({"target": 5.0}, "not in sight"),
    ],
)
def test_a_target_is_foreseen_only_where_that_can_be(changes, said):
    one = watched(live=live_state(**changes))
    one.run.summary.update(changes)  # type: ignore[attr-defined]
    assert said in words(Painter().picture([one]).figures)


def test_text_of_runs_cannot_become_markup():
    live = live_state(
        status=EVIL, rejected={EVIL: 1}, training={EVIL: 1}, silent={EVIL: 1.0}, problem=EVIL, metric_name=EVIL
    )
    summary = {"metric_name": EVIL, "status": EVIL, "rejected": {EVIL: 1}}
    runs = [watched(EVIL, live), watched(EVIL + "2", live_state(training={EVIL: 1}), summary=None)]
    runs.append(watched(EVIL + "3", None, summary=summary))
    picture = Painter().picture(runs, notes=[EVIL], where=EVIL)
    page = picture.whole_page()
    own = page[: page.index("plotly.js v")]
    assert "<img" not in own
    assert own.count("</script>") == 1
    assert "<img" not in picture.charts
    assert 'onerror="' not in picture.figures


def test_runs_of_one_name_are_told_apart_and_share_the_charts():
    one, other = watched("a/mine", live_state()), watched("b/mine", live_state())
    for path, run in (("a", one), ("b", other)):
        object.__setattr__(run.run, "name", "mine")
        object.__setattr__(run.run, "summary", {**run.run.summary, "seed": path})
    picture = Painter().picture([one, other])
    assert [words(found) for found in re.findall(r"<h3>(.*?)</h3>", picture.figures)][:2] == [
        "mine · seed a",
        "mine · seed b",
    ]
    keys = [chart["key"] for chart in json.loads(picture.charts)]
    assert keys == ["uploads", "bytes", "lag", "staleness", "parts"]
    assert all(f'id="plot-{key}"' in picture.figures for key in keys)


def test_without_any_run_the_page_says_where_it_looks():
    picture = Painter().picture([], where="runs/")
    assert "No run yet in runs/" in words(picture.figures)
    assert picture.charts == "[]"


def test_of_very_many_runs_those_that_go_on_and_the_latest_are_shown():
    many = [watched(f"old{number}", None, 1000.0 + number, {"status": "finished"}) for number in range(40)]
    many.insert(20, watched("now", live_state()))
    figures = Painter().picture(many).figures
    assert "17 more runs" in figures
    names = re.findall(r"<h3>(\w+)</h3>", figures)[:24]
    assert names == [*(f"old{number}" for number in range(20)), "now", "old20", "old21", "old22"]


def test_the_whole_page_has_its_first_state_and_may_talk_to_its_own_server_alone():
    page = Painter().picture([watched(live=live_state())]).whole_page()
    assert "0.599" in page
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")
    assert policy[1].count("sha256-") == 3
    assert policy[1].endswith("; connect-src 'self'")
    assert not re.search(r'(src|href)="(?!data:)', page[: page.index("plotly.js v")])
