"""Every error this package raises on purpose, and whose fault it is.

    QafelError
    ├── UserError             what you asked for cannot be done; the command line exits with 2
    │   ├── ConfigError         a setting is unknown, of the wrong type, or impossible
    │   │   └── SpecError         a quantizer's text spec does not parse
    │   ├── PartFailed          a part of your own raised an exception, or returned what it must not
    │   ├── DataError           a dataset or run file is missing or damaged
    │   │   ├── DamagedJournal    a deployed run's journal lacks updates that counted; nothing was changed
    │   │   ├── NothingToShow     there is no run, or none of its evaluations yet
    │   │   └── NotComparable     runs that a published claim needs are missing, or differ from the published ones
    │   ├── OutputError         a result cannot be written
    │   ├── FloatingPointMode   this thread's arithmetic is not the default one, so that x̂ would differ
    │   ├── AnotherServer       another server serves the run, or the broker's history is not this folder's
    │   └── BrokerUnreachable   no broker there, or it does not let us in
    ├── NonFiniteVector       your own vector holds a NaN or an infinity
    ├── MessageError          a peer sent bytes that are not a valid message for this receiver
    │   ├── TruncatedMessage    fewer bytes than the header promises
    │   ├── OversizedMessage    more bytes than the header promises, or than this receiver takes
    │   ├── UnknownFormat       not our magic, format version or kind
    │   ├── ChecksumMismatch    bytes changed on the way
    │   ├── WrongKind           an upload where a broadcast belongs, or the reverse
    │   ├── WrongDimension      made for a model of another size
    │   ├── WrongCodec          made by another quantizer than agreed
    │   ├── MalformedPayload    the quantizer cannot read it, or it decodes to NaN or infinity
    │   ├── MalformedHeader     the message's header block is not what the protocol says
    │   └── BadSignature        not signed by who should have sent it
    ├── RejectedUpload        a valid upload that the server does not take
    │   ├── DuplicateUpload     this (client, sequence) was counted before
    │   ├── StaleUpload         staleness above the maximum
    │   ├── FutureUpload        based on a version the server has not made
    │   ├── UnknownClient       from a client that is not registered
    │   ├── WrongSender         sent under another client's number
    │   ├── NormTooLarge        far beyond the clients' median
    │   ├── RateLimited         more often than a client may
    │   ├── OverShare           its client has more than its share of the recent updates
    │   ├── MemoryMismatch      its client's memory does not follow the client's last counted upload
    │   └── QuarantinedUpload   the server failed at it several times: it is put aside
    ├── HiddenStateError      a hidden state cannot be advanced by this message
    │   ├── MissedBroadcast     broadcasts in between are missing: catch up
    │   ├── ClientAhead         the client claims a version the server has not made
    │   └── Drifted             the digest differs: start again from a snapshot
    ├── RunFailed             a run came to its end without a result that counts; `result` has what there is
    │   ├── Diverged            the model, the metric or the loss is no longer finite
    │   └── Stalled             the server can make no step, or made none


    ├── TrainingFailed        a deployed client's training failed many times in a row
    ├── WorkerLost            worker processes die before they begin, or again and again at the same work
    └── BrokerError           the broker did not do its part: begin a new session
        ├── BrokerLost          the connection broke, or there was no answer
        └── BrokerRefused       it answered, and said no

`reason` is the slug under which rejections are counted.

A message that advises an argument names it in backticks, `out`: the command line shows its option instead, --out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, ClassVar


class QafelError(Exception):
    """Base of all errors that this package raises on purpose."""

    reason: ClassVar[str] = "error"


class UserError(QafelError):
    """What was asked for cannot be done; the message says what to do instead."""


class ConfigError(UserError):
    reason = "config"


class SpecError(ConfigError):
    reason = "spec"


class PartFailed(UserError):
    """A user's own part raised an exception, which is the cause; or it returned what such a part must not."""

    reason = "part-failed"


class DataError(UserError):
    reason = "data"


class DamagedJournal(DataError):
    reason = "damaged-journal"


class NothingToShow(DataError):
    """There is no run here, or one without any evaluation yet; among others it may be left out.

    `message` is the sentence for a user, `why` a short phrase for a list of what was left out.
    """

    reason = "nothing-to-show"

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class NotComparable(DataError):
    reason = "not-comparable"


class OutputError(UserError):
    reason = "output"


class FloatingPointMode(UserError):
    reason = "floating-point-mode"


class AnotherServer(UserError):
    reason = "another-server"


class BrokerUnreachable(UserError):
    reason = "broker-unreachable"


class NonFiniteVector(QafelError):
    reason = "non-finite-vector"


class MessageError(QafelError):
    """A peer sent bytes that are not a valid message for this receiver."""

    reason = "message"


class TruncatedMessage(MessageError):
    reason = "truncated"


class OversizedMessage(MessageError):
    reason = "oversized"


class UnknownFormat(MessageError):
    reason = "unknown-format"


class ChecksumMismatch(MessageError):
    reason = "checksum"


class WrongKind(MessageError):
    reason = "wrong-kind"


class WrongDimension(MessageError):
    reason = "wrong-dimension"


class WrongCodec(MessageError):
    reason = "wrong-codec"


class MalformedPayload(MessageError):
    reason = "malformed-payload"


class MalformedHeader(MessageError):
    reason = "malformed-header"


class BadSignature(MessageError):
    reason = "signature"


class RejectedUpload(QafelError):
    """A valid upload that the server does not take."""

    reason = "rejected"


class DuplicateUpload(RejectedUpload):
    reason = "duplicate"


class StaleUpload(RejectedUpload):
    reason = "stale"


class FutureUpload(RejectedUpload):
    reason = "future"


class UnknownClient(RejectedUpload):
    reason = "unknown-client"


class WrongSender(RejectedUpload):
    reason = "wrong-sender"


class NormTooLarge(RejectedUpload):
    reason = "norm"


class RateLimited(RejectedUpload):
    reason = "rate"


class OverShare(RejectedUpload):
    reason = "share"


class MemoryMismatch(RejectedUpload):
    reason = "memory"


class QuarantinedUpload(RejectedUpload):
    reason = "quarantined"


class HiddenStateError(QafelError):
    """A hidden state cannot be advanced by this message."""

    reason = "hidden-state"


class MissedBroadcast(HiddenStateError):
    reason = "missed-broadcast"


class ClientAhead(HiddenStateError):
    reason = "client-ahead"


class Drifted(HiddenStateError):
    reason = "drifted"


class RunFailed(QafelError):
    """A run came to its end without a result that counts: `result` is what `simulate` would have returned."""

    reason = "run-failed"
    result: Any = None


class Diverged(RunFailed):
    reason = "diverged"


class Stalled(RunFailed):
    reason = "stalled"


class TrainingFailed(QafelError):
    reason = "training"


class WorkerLost(QafelError):
    """Worker processes die before they begin, or again and again at the same work."""

    reason = "worker-lost"


class BrokerError(QafelError):
    """The broker did not do its part: begin a new session. `stream` names the one that failed, if it was one."""

    reason = "broker"

    def __init__(self, message: str, stream: str | None = None) -> None:
        super().__init__(message)
        self.stream = stream


class BrokerLost(BrokerError):
    reason = "broker-lost"


class BrokerRefused(BrokerError):
    reason = "broker-refused"


def require(holds: object, rule: str, found: object) -> None:
    """Raise a `ConfigError` that states the `rule` and what was `found`, unless it `holds`."""
    if not holds:
        raise ConfigError(f"{rule}; got {found}")


def require_numbers(table: Any) -> None:
    """Raise `ConfigError` if a field of a dataclass that is annotated as a number holds anything else.

    A whole number that is written as a float, such as 1e3, becomes an int.
    """
    for entry in fields(table):
        kind, _, optional = str(entry.type).partition(" | ")
        value = getattr(table, entry.name)
        if kind not in _NUMBERS or (value is None and optional == "None"):
            continue
        if kind == "int" and (whole := plain_number(value)) is not value:
            object.__setattr__(table, entry.name, value := whole)  # the dataclass may be frozen
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[kind]):
            raise ConfigError(f"{entry.name} is {'a whole number' if kind == 'int' else 'a number'}; got {value!r}")


def plain_number(value: Any) -> Any:
    """A number as Python's int or float, an int if it is whole, such as 1e3; any other value as it is."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    return int(number) if (number := float(value)).is_integer() else number


_NUMBERS: Mapping[str, type] = {"int": Integral, "float": Real}
