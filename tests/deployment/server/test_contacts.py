"""A client is silent by its own measure: one that comes every hour is not after a minute."""

import pytest

from qafel.deployment.server.intake import Contact


def after(*times: float) -> Contact:
    contact = None
    for time in times:
        contact = Contact.after(contact, 0, time)
    assert contact is not None
    return contact


@pytest.mark.parametrize(
    ("times", "silence_s", "silent"),
    [
        ((0, 1, 2, 3), 9, False),
        ((0, 1, 2, 3), 11, True),
        ((0, 60, 120), 299, False),
        ((0, 60, 120), 301, True),
        ((0,), 59, False),
        ((0,), 61, True),
    ],
)
def test_a_client_is_silent_after_ten_seconds_and_five_of_its_usual_gaps(times, silence_s, silent):
    assert after(*times).silent(times[-1] + silence_s) is silent


def test_a_single_long_gap_does_not_make_a_client_slow():
    assert after(0, 1, 2, 3, 40, 41, 42, 43, 44, 45, 46).gap_s == pytest.approx(1, abs=2)
    assert after(0, 1, 2, 3, 40, 41, 42, 43, 44, 45, 46).silent(46 + 15)
