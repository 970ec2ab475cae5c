"""The Gutenberg text of Shakespeare, cut into plays and characters as LEAF does it.

A user is a character of a play; its text is everything it says, lines joined by spaces. LEAF's rules, which this module
follows to the sample (1,129 users, 4,226,158 samples of 80 characters), are those of a text of 1994 with plain layout:

- a play begins at a line "by William Shakespeare"; its title stands 2 to 7 lines above. What comes before the second
  such line (contents, sonnets) is skipped, and the poems after the last play too;
- "  NAME. words" begins a speech, four spaces continue it; The Comedy of Errors lacks the indentation;
- names are compared in capitals; a character with at most two lines is left out, as is a "play" with one character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import final

from qafel.errors import DataError

_MARK = "by William Shakespeare"
_LAST_LINE = 124_195  # where the last play ends in the edition of 1994
_LEAST_LINES = 3
_UNINDENTED = "THE COMEDY OF ERRORS"


@final
@dataclass
class _Play:
    """A play as it is read: its characters and their lines."""

    title: str
    lines: dict[str, list[str]] = field(default_factory=dict)
    speaker: str | None = None

    def __post_init__(self) -> None:
        indented = self.title != _UNINDENTED
        self._unindented = not indented
        self._speech = re.compile(("  " if indented else "") + r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
        self._continuation = re.compile(("    " if indented else "") + r"(.*)")

    def read(self, line: str) -> None:
        """Give the line to the one who speaks."""
        if match := self._speech.match(line):
            name = match[1].upper()
            if self._unindented and name.startswith("ACT "):
                self.speaker = None
                return
            self.speaker = name
            self.lines.setdefault(name, []).append(match[2])
        elif self.speaker and (match := self._continuation.match(line)):
            if self._unindented and match[1].startswith("<"):
                self.speaker = None
            else:
                self.lines[self.speaker].append(match[1])


def parse_shakespeare(text: str) -> dict[str, str]:
    """What each character of each play says, by user name; users in order of appearance."""
    lines = text.split("\n")[1:]
    marks = [number for number, line in enumerate(lines) if _MARK in line]
    if len(marks) < 2:
        raise DataError(f"Shakespeare: the text has no lines {_MARK!r}: expected Project Gutenberg's #100 of 1994")
    start = marks[1] - 5
    users: dict[str, str] = {}
    for play in _plays(lines[start : _LAST_LINE + 1], [mark - start for mark in marks[1:]]):
        if len(play.lines) < 2:
            continue
        for name, said in play.lines.items():
            if len(said) >= _LEAST_LINES:
                user = re.sub(r"\W+", "_", f"{play.title}_{name}".replace(" ", "_"))
                users[user] = users.get(user, "") + "".join(line + "\n" for line in said)
    return {user: re.sub(r"  +", " ", said.replace("\n", " ")) for user, said in users.items()}


def _plays(lines: list[str], marks: list[int]) -> list[_Play]:
    plays = []
    for begin, end in zip(marks, [*marks[1:], len(lines)], strict=True):
        if begin >= len(lines):
            break
        above = [lines[begin - distance].strip() for distance in range(2, 8)]
        play = _Play(next((title for title in above if title), ""))
        for line in lines[begin + 1 : min(end, len(lines))]:
            play.read(line)
        plays.append(play)
    return plays
