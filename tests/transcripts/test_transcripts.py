"""Every transcript, replayed as the daemon and as the child."""

from __future__ import annotations

import pytest

from kcl_protocol.codec import Echo, Stray, decode_child_line, decode_daemon_line, encode
from kcl_protocol.conversation import Conversation, LineFramer, Role
from kcl_protocol.errors import LocalProtocolError, RemoteProtocolError
from kcl_protocol.messages import Message
from tests.transcripts.transcript import Line, Transcript, load_all

TRANSCRIPTS = load_all()
each_transcript = pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.name)
each_role = pytest.mark.parametrize("role", list(Role), ids=lambda role: f"as_{role.value}")


def read(line: Line) -> Message | None:
    """What the other side reads; None where the line is no message, after checking that it is the right sort of none."""
    if line.speaker is Role.DAEMON:
        return decode_daemon_line(line.line)
    heard = decode_child_line(line.line)
    if line.is_message:
        assert not isinstance(heard, Echo | Stray), heard
        return heard
    match heard:
        case Echo():
            assert line.reads_as == "echo"
        case Stray():
            assert line.reads_as == ("blank" if heard.blank else "stray")
        case _:
            pytest.fail(f"{line.line!r} is not {line.reads_as} but {heard}")
    return None


def say_or_hear(conversation: Conversation, role: Role, line: Line, message: Message) -> None:
    if role is line.speaker:
        conversation.send(message)
    else:
        conversation.receive(message)


@each_transcript
@each_role
def test_the_conversation_goes_as_written(transcript: Transcript, role: Role) -> None:
    conversation = Conversation(role)
    for line in transcript.lines:
        message = read(line)
        if message is None:
            continue
        assert encode(message) == line.ours + b"\n"
        if line.refused is None:
            say_or_hear(conversation, role, line, message)
            continue
        before = conversation.state
        error = LocalProtocolError if role is line.speaker else RemoteProtocolError
        with pytest.raises(error) as caught:
            say_or_hear(conversation, role, line, message)
        assert str(caught.value) == line.refused
        assert conversation.state is before
        assert line is transcript.lines[-1]
    assert conversation.state is transcript.ends


@each_transcript
@each_role
@pytest.mark.parametrize("piece_bytes", [1, 7, 4096])
def test_the_lines_come_out_of_the_pipe_however_it_is_cut(
    transcript: Transcript, role: Role, piece_bytes: int
) -> None:
    stream = transcript.said_by(role)
    framer = LineFramer(max_line_bytes=65536)
    lines = [
        line
        for start in range(0, len(stream), piece_bytes)
        for line in framer.feed(stream[start : start + piece_bytes])
    ]
    assert lines == [line.line for line in transcript.lines if line.speaker is role]
    assert framer.close() == []


@each_transcript
def test_every_message_is_encoded_in_ascii(transcript: Transcript) -> None:
    for line in transcript.lines:
        message = read(line)
        if message is not None:
            assert encode(message).isascii()


def test_the_transcripts_cover_every_message_and_every_error_name() -> None:
    ours = b"\n".join(line.ours for transcript in TRANSCRIPTS for line in transcript.lines)
    for action in (
        "initialize",
        "processRecords",
        "shutdownRequested",
        "leaseLost",
        "shardEnded",
        "shutdown",
    ):
        assert f'{{"action":"{action}"'.encode() in ours
        assert f'{{"action":"status","responseFor":"{action}"}}'.encode() in ours
    for name in (
        "ThrottlingException",
        "KinesisClientLibDependencyException",
        "ShutdownException",
        "InvalidStateException",
        "IllegalArgumentException",
    ):
        assert f'"error":"{name}"'.encode() in ours
    for name in (
        "NoDeadLetterDestination",
        "DeadLetterTooLarge",
        "IllegalArgumentException",
        "ShutdownException",
    ):
        assert f'"error":"{name}","message":"'.encode() in ours
    assert b'"pauseMillis":' in ours
