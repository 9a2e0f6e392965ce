"""The channel: frames survive any split, bounds hold, a dead peer is noticed at once."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.channel import (
    AsyncChannel,
    BlockingChannel,
    ChannelClosed,
    FrameError,
    FrameReader,
    pack_frame,
)


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 64), min_size=1))
def test_any_split_of_the_bytes_gives_the_same_frames(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(pack_frame(payload) for payload in payloads)
    reader = FrameReader()
    got: list[bytes] = []
    at = index = 0
    while at < len(stream):
        size = cuts[index % len(cuts)]
        got += reader.feed(stream[at : at + size])
        at, index = at + size, index + 1
    assert got == payloads
    assert reader.pending == 0


@given(st.binary(max_size=64), st.integers(0, 63))
def test_an_incomplete_frame_is_kept_back(payload: bytes, cut: int) -> None:
    frame = pack_frame(payload)
    reader = FrameReader()
    assert reader.feed(frame[: min(cut, len(frame) - 1)]) == []
    assert reader.feed(frame[min(cut, len(frame) - 1) :]) == [payload]


def test_a_header_beyond_the_bound_is_refused_before_its_bytes_come() -> None:
    reader = FrameReader(max_frame=10)
    with pytest.raises(FrameError, match="11 bytes; the limit is 10"):
        reader.feed((11).to_bytes(4, "big"))
    assert reader.pending == 0


def test_a_message_beyond_the_bound_is_not_sent() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours, max_frame=10)
    with pytest.raises(FrameError):
        channel.send(b"x" * 11)
    channel.send(b"x" * 10)
    assert theirs.recv(100) == b"\0\0\0\x0a" + b"x" * 10
    channel.close()
    theirs.close()


def test_receive_does_not_wait_with_timeout_zero_and_waits_with_a_timeout() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    assert channel.receive(0) == []
    began = time.monotonic()
    assert channel.receive(0.05) == []
    assert time.monotonic() - began >= 0.045
    theirs.sendall(pack_frame(b"one") + pack_frame(b"two")[:5])
    assert channel.receive(None) == [b"one"]
    theirs.sendall(pack_frame(b"two")[5:])
    assert channel.receive(None) == [b"two"]
    channel.close()
    theirs.close()


def test_waiting_uses_no_cpu() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    used: list[float] = []

    def wait() -> None:
        before = time.thread_time()
        channel.receive(None)
        used.append(time.thread_time() - before)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    theirs.sendall(pack_frame(b""))
    thread.join(5)
    assert used[0] < 0.02
    channel.close()
    theirs.close()


def test_frames_before_the_end_are_handed_out_first() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    theirs.sendall(pack_frame(b"last words"))
    theirs.close()
    assert channel.receive(None) == [b"last words"]
    with pytest.raises(ChannelClosed):
        channel.receive(None)
    with pytest.raises(ChannelClosed):
        channel.send(b"anyone?")
        channel.send(b"anyone?")
    channel.close()


async def test_both_ends_talk_and_the_end_is_noticed_at_once() -> None:
    ours, theirs = socket.socketpair()
    frames: list[bytes] = []
    closed, got = asyncio.Event(), asyncio.Event()

    def on_frame(frame: bytes) -> None:
        frames.append(frame)
        got.set()

    channel = await AsyncChannel.connect(ours, on_frame, closed.set)
    engine = BlockingChannel(theirs)
    big = bytes(range(256)) * 8000  # more than the socket's buffer holds
    channel.send(b"hello")
    channel.send(big)
    received: list[bytes] = []
    await asyncio.to_thread(_read_two, engine, received)
    assert received == [b"hello", big]
    engine.send(b"answer")
    await asyncio.wait_for(got.wait(), 5)
    assert frames == [b"answer"]
    began = time.monotonic()
    engine.close()
    await asyncio.wait_for(closed.wait(), 5)
    assert time.monotonic() - began < 1
    channel.send(b"into the void")  # swallowed
    assert not channel.open


async def test_a_damaged_stream_counts_as_a_dead_peer() -> None:
    ours, theirs = socket.socketpair()
    closed = asyncio.Event()
    await AsyncChannel.connect(ours, lambda frame: None, closed.set, max_frame=100)
    theirs.sendall(b"\xff\xff\xff\xff")
    await asyncio.wait_for(closed.wait(), 5)
    assert select.select([theirs], [], [], 5)[0]
    theirs.close()


def _read_two(engine: BlockingChannel, received: list[bytes]) -> None:
    while len(received) < 2:
        received += engine.receive(5)
