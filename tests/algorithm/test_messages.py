"""The frame: what is written is read back, and nothing else is ever accepted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qafel.algorithm import HiddenState, Kind, LocalTraining, Message, Server, method
from qafel.algorithm.messages import HEADER_BYTES
from qafel.errors import (
    ChecksumMismatch,
    ConfigError,
    MalformedPayload,
    MessageError,
    OversizedMessage,
    TruncatedMessage,
    UnknownFormat,
    WrongCodec,
    WrongDimension,
    WrongKind,
)
from qafel.quantizers import parse
from qafel.rng import Stream
from tests.uploads import upload_of

SIZE = 37
QSGD = parse("qsgd:4")
ALGORITHM = method(
    "qafel", server_lr=0.1, local=LocalTraining(1.0, 1), client_quantizer="qsgd:4", server_quantizer="qsgd:4"
)


def upload(sequence=0, weight=1.0):
    start = HiddenState.of(np.zeros(SIZE, np.float32))
    trained = np.linspace(-1, 1, SIZE, dtype=np.float32)
    return upload_of(start, trained, ALGORITHM, client=3, sequence=sequence, weight=weight)


messages = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    codec=st.binary(min_size=16, max_size=16),
    dimension=st.integers(0, 2**32 - 1),
    version=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=200),
    sender=st.integers(0, 2**64 - 1),
    sequence=st.integers(0, 2**32 - 1),
    weight=st.floats(min_value=2**-100, max_value=2**100, width=32),
    digest=st.integers(0, 2**64 - 1),
)


@given(messages)
def test_what_is_written_is_read_back(message):
    assert Message.from_bytes(message.to_bytes()) == message


def test_a_large_payload_crosses_although_it_is_a_view():
    """An encoder hands out a large payload as a view of its buffer; the message holds real bytes."""
    vector = np.linspace(-1, 1, 700_001, dtype=np.float32)
    payload = QSGD.encode(vector, Stream.named(0, "test"))
    assert isinstance(payload, memoryview)
    frame = Message(Kind.UPLOAD, QSGD.codec, vector.size, 0, payload).to_bytes()
    assert type(frame) is bytes
    assert Message.from_bytes(frame).payload == payload
    assert len(frame) == HEADER_BYTES + QSGD.max_payload_bytes(vector.size)


def test_the_header_is_at_most_64_bytes():
    message = Message(Kind.UPLOAD, QSGD.codec, SIZE, 0, b"")
    assert len(message.to_bytes()) == HEADER_BYTES == 64


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data):
    with pytest.raises(MessageError):
        Message.from_bytes(data)


@given(st.binary(max_size=300))
def test_random_bytes_behind_a_good_start_are_refused(data):
    with pytest.raises(MessageError):
        Message.from_bytes(upload()[:4] + data)


@given(messages, st.data())
@settings(max_examples=300)
def test_no_changed_byte_is_accepted(message, data):
    frame = bytearray(message.to_bytes())
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MessageError):
        Message.from_bytes(bytes(frame))


def test_twenty_thousand_random_bit_flips_never_reach_the_server():
    """A 32-bit checksum lets one in 4·10⁹ through: the chance that this fails by bad luck is below 10⁻⁵."""
    server = Server(np.zeros(SIZE, np.float32), ALGORITHM, seed=0)
    generator = np.random.default_rng(0)
    frame = np.frombuffer(upload(), np.uint8)
    before = (server.model.tobytes(), server.accumulator.total.tobytes(), server.accumulator.count)
    for _ in range(20_000):
        bits = np.unpackbits(frame)
        bits[generator.choice(bits.size, size=generator.integers(1, 9), replace=False)] ^= 1
        with pytest.raises(MessageError):
            server.receive(Message.from_bytes(np.packbits(bits).tobytes()))
    assert (server.model.tobytes(), server.accumulator.total.tobytes(), server.accumulator.count) == before
    assert server.version == server.accumulator.count == 0


def test_every_truncation_is_named():
    frame = upload()
    for length in range(len(frame)):
        with pytest.raises(TruncatedMessage):
            Message.from_bytes(frame[:length])


def test_each_fault_has_its_own_error():
    frame = upload()
    with pytest.raises(OversizedMessage, match="promises"):
        Message.from_bytes(frame + b"\0")
    with pytest.raises(UnknownFormat, match="format 2: upgrade"):
        Message.from_bytes(frame[:2] + b"\x02" + frame[3:])
    with pytest.raises(UnknownFormat, match="starts with"):
        Message.from_bytes(b"XY" + frame[2:])
    with pytest.raises(ChecksumMismatch, match="damaged"):
        Message.from_bytes(frame[:-1] + bytes([frame[-1] ^ 1]))
    message = Message.from_bytes(frame)
    with pytest.raises(WrongKind, match="expected broadcast, found upload"):
        message.check(Kind.BROADCAST, SIZE, QSGD)
    with pytest.raises(WrongDimension, match="38 parameters, the message 37"):
        message.check(Kind.UPLOAD, SIZE + 1, QSGD)
    with pytest.raises(WrongCodec, match="none"):
        message.check(Kind.UPLOAD, SIZE, parse("none"))
    with pytest.raises(OversizedMessage, match="at most"):
        message._replace(payload=bytes(10_000)).check(Kind.UPLOAD, SIZE, QSGD)


def test_an_unknown_kind_is_named():
    header = bytearray(Message(Kind.UPLOAD, QSGD.codec, SIZE, 0, b"").to_bytes())
    frame = Message.to_bytes(Message.from_bytes(bytes(header))._replace(kind=9))
    with pytest.raises(UnknownFormat, match="unknown kind of message 9"):
        Message.from_bytes(frame)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_refused(weight):
    with pytest.raises(MalformedPayload, match="weight"):
        Message.from_bytes(upload(weight=weight))


def test_a_model_too_large_for_a_frame_says_so():
    with pytest.raises(ConfigError, match="4294967295"):
        Message(Kind.UPLOAD, QSGD.codec, 2**32, 0, b"").to_bytes()


@given(st.binary(max_size=100), st.sampled_from(["none", "qsgd:4", "top_k:0.1"]))
@settings(max_examples=300)
def test_a_well_framed_garbage_payload_is_refused_or_finite_and_never_half_applied(payload, spec):
    algorithm = method("qafel", server_lr=0.1, local=LocalTraining(1.0, 1), client_quantizer=spec)
    server = Server(np.zeros(SIZE, np.float32), algorithm, seed=0)
    frame = Message(Kind.UPLOAD, algorithm.client_quantizer.codec, SIZE, 0, payload).to_bytes()
    try:
        server.receive(Message.from_bytes(frame))
    except MessageError:
        assert server.accumulator.count == 0
        assert not server.accumulator.total.any()
    else:
        assert np.isfinite(server.accumulator.total).all()


def test_a_non_finite_payload_changes_nothing():
    algorithm = method("fedbuff", server_lr=0.1, local=LocalTraining(1.0, 1))
    server = Server(np.zeros(SIZE, np.float32), algorithm, seed=0)
    for bad in (np.nan, np.inf, -np.inf):
        vector = np.ones(SIZE, np.float32)
        vector[-1] = bad
        frame = Message(Kind.UPLOAD, algorithm.client_quantizer.codec, SIZE, 0, vector.tobytes()).to_bytes()
        with pytest.raises(MalformedPayload):
            server.receive(Message.from_bytes(frame))
    assert not server.accumulator.total.any()
    assert server.rejected == {"malformed-payload": 3}
