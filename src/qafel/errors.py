"""Every error that this package raises on purpose.

    QafelError
    ├── UserError             a request that cannot be fulfilled; the command line exits with 2
    │   ├── ConfigError         a setting is unknown, of the wrong type, or impossible
    │   │   └── SpecError         a quantizer's text does not parse
    │   ├── PartFailed          a custom part raised an exception, or returned a wrong value
    │   ├── DataError           a dataset or run file is missing or damaged
    │   │   ├── DamagedJournal    a deployed run's journal lacks accepted updates; nothing was changed
    │   │   └── NothingToShow     a folder without a run, or a run without evaluations
    │   ├── OutputError         a result cannot be written
    │   ├── FloatingPointMode   this thread rounds in another way than the other peers, so x̂ would differ
    │   ├── AnotherServer       another server serves the run, or the broker has the history of another run
    │   └── BrokerUnreachable   the broker is not there, or refuses the connection
    ├── NonFiniteVector       a vector to send holds a NaN or an infinity
    ├── MessageError          a peer sent bytes that are not a valid message for this receiver
    │   ├── TruncatedMessage    fewer bytes than the header states
    │   ├── OversizedMessage    more bytes than the header states, or than this receiver accepts
    │   ├── UnknownFormat       unknown magic, format version or kind
    │   ├── ChecksumMismatch    bytes changed in transit
    │   ├── WrongKind           an upload in place of a broadcast, or the reverse
    │   ├── WrongDimension      made for a model of another size
    │   ├── WrongCodec          made by another quantizer than agreed
    │   ├── MalformedPayload    the quantizer cannot read it, or it decodes to NaN or infinity
    │   ├── MalformedHeader     the header block violates the protocol
    │   └── BadSignature        not signed by the stated sender
    ├── RejectedUpload        a valid upload that the server does not accept
    │   ├── DuplicateUpload     this (client, sequence) was counted before
    │   ├── StaleUpload         staleness above the maximum
    │   ├── FutureUpload        based on a version that the server has not made
    │   ├── UnknownClient       from a client that is not registered
    │   ├── WrongSender         sent under another client's number
    │   ├── NormTooLarge        far above the clients' median norm
    │   ├── RateLimited         the client sends too often
    │   ├── OverShare           the client has too large a share of the recent updates
    │   ├── MemoryMismatch      the client's memory does not follow its last counted upload
    │   └── QuarantinedUpload   the server failed on it several times and put it aside
    ├── HiddenStateError      a message cannot advance this hidden state
    │   ├── MissedBroadcast     broadcasts in between are missing: catch up
    │   └── Drifted             the digest differs: start again from a snapshot
    ├── RunFailed             a run ended without a valid result; `result` holds the rows so far
    │   ├── Diverged            the model, the metric or the loss is not finite
    │   └── Stalled             the server cannot make a step, or did not make one
    ├── TrainingFailed        a deployed client's training failed many times in a row
    ├── WorkerLost            worker processes die at their start, or repeatedly at the same work
    └── BrokerError           the broker failed: open a new session
        ├── BrokerLost          the connection broke, or the broker did not answer
        └── BrokerRefused       the broker answered with a refusal

Rejections and ignored messages are counted by their `reason`.

Messages name arguments in backticks, such as `out`. The command line prints the option instead: --out.
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
    """A request that cannot be fulfilled. The message says what to do instead."""


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or impossible."""


class SpecError(ConfigError):
    """A quantizer's text does not parse."""


class PartFailed(UserError):
    """A custom part raised an exception, which is the cause, or returned a wrong value."""


class DataError(UserError):
    """A dataset or run file is missing or damaged."""


class DamagedJournal(DataError):
    """A deployed run's journal lacks accepted updates; nothing was changed."""


class NothingToShow(DataError):
    """A folder without a run, or a run without evaluations.

    `message` is a sentence for the user, `why` a short phrase for a list of skipped runs.
    """

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


class OutputError(UserError):
    """A result cannot be written."""


class FloatingPointMode(UserError):
    """The thread rounds in another way than the other peers, so x̂ would differ."""


class AnotherServer(UserError):
    """Another server serves the run, or the broker has the history of another run."""


class BrokerUnreachable(UserError):
    """The broker is not there, or refuses the connection."""


class NonFiniteVector(QafelError):
    """A vector to send holds a NaN or an infinity."""


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
    """A valid upload that the server does not accept."""

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
    """A message cannot advance this hidden state."""

    reason = "hidden-state"


class MissedBroadcast(HiddenStateError):
    reason = "missed-broadcast"


class Drifted(HiddenStateError):
    reason = "drifted"


class RunFailed(QafelError):
    """A run ended without a valid result. `result` is the `Result` that `simulate` would have returned."""

    reason = "run-failed"
    result: Any = None


class Diverged(RunFailed):
    reason = "diverged"


class Stalled(RunFailed):
    reason = "stalled"


class TrainingFailed(QafelError):
    """A deployed client's training failed many times in a row."""


class WorkerLost(QafelError):
    """Worker processes die at their start, or repeatedly at the same work."""


class BrokerError(QafelError):
    """The broker failed: open a new session. `stream` names the stream that failed, if any."""

    def __init__(self, message: str, stream: str | None = None) -> None:
        super().__init__(message)
        self.stream = stream


class BrokerLost(BrokerError):
    """The connection broke, or the broker did not answer."""


class BrokerRefused(BrokerError):
    """The broker answered with a refusal."""


def require(holds: object, rule: str, found: object) -> None:
    """Raise a `ConfigError` with the `rule` and the value `found`, unless the rule `holds`."""
    if not holds:
        raise ConfigError(f"{rule}; got {found}")


def require_numbers(table: Any) -> None:
    """Raise `ConfigError` if a number field of a dataclass holds another type. Whole floats such as 1e3 become ints."""
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
    """Convert a number to int if it is whole, such as 1e3, else to float. Return other values unchanged."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    return int(number) if (number := float(value)).is_integer() else number


_NUMBERS: Mapping[str, type] = {"int": Integral, "float": Real}
