"""Numbers, written for people."""

import math

import pytest

from qafel.text import (
    counted,
    did_you_mean,
    human_bytes,
    human_count,
    human_metric,
    human_rate,
    human_ratio,
    human_seconds,
    split_list,
)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (human_bytes(0), "0 B"),
        (human_bytes(999), "999 B"),
        (human_bytes(999_999), "1.00 MB"),
        (human_bytes(12_345_678), "12.3 MB"),
        (human_bytes(math.nan), "–"),
        (counted(1, "client"), "1 client"),
        (counted(0, "client"), "0 clients"),
        (counted(1_000, "client"), "1,000 clients"),
        (human_count(9_999), "9,999"),
        (human_count(100_000), "100 k"),
        (human_count(6.02), "6.02"),
        (human_rate(3205.1), "3.21 k/s"),
        (human_metric(1.204e-4), "1.20e-4"),
        (human_metric(0.9123), "0.912"),
        (human_metric(math.nan), "NaN"),
        (human_metric(math.inf), "∞"),
        (human_metric(-1.5e6), "-1.50e6"),
        (human_ratio(0.1311), "0.131×"),
        (human_ratio(1.0), "1×"),
        (human_seconds(31.24), "31.2 s"),
        (human_seconds(125), "2 min 5 s"),
        (human_seconds(7384), "2 h 3 min"),
        (human_seconds(47 * 3600), "47 h 0 min"),
        (human_seconds(5 * 86400 + 3 * 3600 + 59), "5 d 3 h"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


# A busy machine is no failure.


def test_an_unknown_name_gets_the_close_one_or_all_that_are_known_unless_they_are_too_many():
    assert did_you_mean("qsdg", ["qsgd", "sign"]) == "; did you mean 'qsgd'?"
    assert did_you_mean("zzz", ["qsgd", "sign"]) == "; known are qsgd, sign"
    assert did_you_mean("zzz", map(str, range(90))) == ""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2, 3", ["1", "2", "3"]),
        ("qsgd:4", ["qsgd:4"]),
        ("top_k:0.5,round=down,qsgd:4", ["top_k:0.5,round=down", "qsgd:4"]),
        ("rand_k:0.25,values=rotated:1,none", ["rand_k:0.25,values=rotated:1", "none"]),
        ("qsgd:levels=8,norm=l2,bucket=none", ["qsgd:levels=8,norm=l2,bucket=none"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ("{a = 1, b = [2, 3]}, 4", ["{a = 1, b = [2, 3]}", "4"]),
        ("1,,2", ["1", "", "2"]),
    ],
)
def test_a_comma_within_a_value_does_not_end_it(text, parts):
    assert split_list(text) == parts
