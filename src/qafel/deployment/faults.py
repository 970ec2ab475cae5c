"""What can go wrong between machines, beside what `qafel.errors` has.

UserError
└── BrokerUnreachable     no broker there, or it does not let us in
QafelError
├── BrokerLost            the connection broke or the broker did not answer: begin a new session
└── BrokerRefused         the broker answered, and said no
MessageError
└── BadSignature          not signed by who should have sent it
RejectedUpload
├── UnknownClient         not in the registry
├── WrongSender           sent under another client's number
├── NormTooLarge          far beyond the running median
├── RateLimited           more often than a client may
└── IncompleteUpload      parts are missing
"""

from __future__ import annotations

from qafel.errors import MessageError, QafelError, RejectedUpload, UserError


class BrokerUnreachable(UserError):
    reason = "broker-unreachable"


class BrokerLost(QafelError):
    reason = "broker-lost"


class BrokerRefused(QafelError):
    reason = "broker-refused"


class BadSignature(MessageError):
    reason = "signature"


class UnknownClient(RejectedUpload):
    reason = "unknown-client"


class WrongSender(RejectedUpload):
    reason = "wrong-sender"


class NormTooLarge(RejectedUpload):
    reason = "norm"


class RateLimited(RejectedUpload):
    reason = "rate"
