"""The scanner gives on what a pickle holds, wherever its chunks end."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapscope.errors import HostileError, TruncatedError
from snapscope.load import scanner
from snapscope.load.opcodes import FREE_MEMO_INDEX, common_opcodes
from snapscope.load.scanner import OpcodeScanner
from snapscope.load.source import PeekReader
from tests.load.samples import SNAPSHOT, dump, framed, header, load_pickle, long_get, long_put, text, write_like_cpp


def chunks_of(content: bytes) -> list[bytes]:
    reader = OpcodeScanner(PeekReader(io.BytesIO(content)))
    chunks = []
    while chunk := reader.next_chunk():
        chunks.append(chunk)
    return chunks


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 300, 1000])
@pytest.mark.parametrize("protocol", range(6))
def test_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch, protocol: int, size: int) -> None:
    content = dump(protocol=protocol)
    monkeypatch.setattr(scanner, "CHUNK_BYTES", size)
    assert load_pickle(content).value == SNAPSHOT


def test_frames_are_left_out_and_nothing_else() -> None:
    opcodes = [b"]\x94", b"(K\x01", b"K\x02\x86\x94", b"e."]
    content = header(4) + b"".join(map(framed, opcodes))
    assert b"".join(chunks_of(content)) == header(4) + b"".join(opcodes)


def test_a_pair_across_two_frames_stays_a_pair() -> None:
    # The pickler closes a frame between any two values; the pair must stay shared.
    content = header(4) + framed(b"](K\x01") + framed(b"K\x02") + framed(b"\x86\x94h\x00e.")
    first, second = load_pickle(content).value
    assert first == (1, 2)
    assert first is second


@pytest.mark.parametrize(
    ("opcodes", "value"),
    [
        (b"K\x01K\x02\x86", (1, 2)),
        (b"K\x01M\x01\x01\x86", (1, 257)),
        (b"J\xff\xff\xff\xffK\x01\x86", (-1, 1)),
        (b"M\x01\x01J\0\0\1\0\x86", (257, 65536)),
        (b"K\x07\x85", (7,)),
        (b"M\x01\x01\x85", (257,)),
        (b"K\x01K\x02K\x03\x87", (1, 2, 3)),
        (b")", ()),
    ],
)
@pytest.mark.parametrize("put", [b"\x94", b"q\x00", long_put(0)])
def test_tuples_of_small_integers_may_be_shared(opcodes: bytes, value: Any, put: bytes) -> None:
    # As many as there are events, and every one of them twice.
    content = header(4) + b"](" + (opcodes + put + b"h\x00") * 2000 + b"e."
    values = load_pickle(content).value
    assert values == [value] * 4000
    assert values[0] is values[1]


def test_pairs_of_protocols_0_and_1() -> None:
    values = [(number % 3, number % 5) for number in range(3000)]
    for protocol in (0, 1):
        assert load_pickle(dump(values, protocol)).value == values


def test_integers_before_a_pair_are_not_the_pairs() -> None:
    values = load_pickle(header(4) + b"](K\x09K\x01K\x02\x86\x94h\x00K\x08e.").value
    assert values == [9, (1, 2), (1, 2), 8]


def test_wrapper_tuples_are_kept() -> None:
    value: list[Any] = [(rank, {"segments": []}, "name", None) for rank in range(500)]
    for protocol in range(6):
        assert load_pickle(dump(value, protocol)).value == value


def test_strings_of_every_length() -> None:
    value = ["x" * length for length in range(300)] + ["é" * 70_000, "y" * 3_000_000]
    for protocol in range(6):
        assert load_pickle(dump(value, protocol)).value == value
    assert load_pickle(write_like_cpp(value)).value == value


def test_integers_of_every_length() -> None:
    value = [sign * (1 << bits) - 1 for bits in range(63) for sign in (1, -1)] + [-(2**63), 2**64 - 1]
    for protocol in range(6):
        assert load_pickle(dump(value, protocol)).value == value


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_memo_of_a_long_file(protocol: int) -> None:
    # More entries than are free, each referred to again; 12 MB, so that several bounds are passed.
    items = [[number] for number in range(FREE_MEMO_INDEX * 3)]
    value = [items, items[::-1]]
    loaded = load_pickle(dump(value, protocol)).value
    assert loaded == value
    assert loaded[0][-1] is loaded[1][0]


def test_memo_of_the_cpp_writer() -> None:
    value = [f"string {number}" for number in range(FREE_MEMO_INDEX * 2)] * 2
    assert load_pickle(write_like_cpp(value)).value == value


@pytest.mark.parametrize("limit", [1 << 16, 1 << 17, 1 << 23, 1 << 24, 1 << 25, 1 << 31, 1 << 32])
@pytest.mark.parametrize("is_text", [True, False])
def test_common_opcodes_bound_the_memo_index(limit: int, is_text: bool) -> None:
    match = common_opcodes(limit, text=is_text).fullmatch
    assert match(long_put(0))
    assert match(long_put(limit - 1))
    if limit < 1 << 32:
        assert not match(long_put(limit))
        assert not match(long_put(2**32 - 1))
    assert match(long_get(2**32 - 1))
    if is_text:
        assert match(b"p65000\n") if limit > 100_000 else match(b"p6500\n")
        assert not match(b"p%d\n" % (limit * 10))


def test_memo_index_right_at_the_bound() -> None:
    padding = b"N" * 300_000

    def content(index: int) -> bytes:
        return header(4) + b"](" + padding + long_put(index) + b"e."

    seen = len(header(4)) + 2 + len(padding)
    assert len(load_pickle(content(seen)).value) == 300_000
    with pytest.raises(HostileError, match="room to remember"):
        load_pickle(content(seen + 1))


def test_positions_count_frame_headers() -> None:
    content = header(4) + framed(b"](NN") + framed(b"NN\xffe.")
    with pytest.raises(Exception, match="byte 0xff at byte 26 is no opcode"):
        load_pickle(content)
    with pytest.raises(TruncatedError, match=r"at byte 24\)"):
        load_pickle(content[:24])
    assert content[26] == 0xFF


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.tuples(st.integers(0, 300), st.integers(0, 300)),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=4), inner, max_size=6)
        | inner.map(lambda item: [item, item])
    ),
    max_leaves=25,
)


@given(value=values, protocol=st.integers(-1, 5), size=st.sampled_from([1, 4, 30, 1 << 20]))
def test_any_plain_value(value: Any, protocol: int, size: int) -> None:
    content = write_like_cpp(value) if protocol < 0 and _fits_cpp(value) else pickle.dumps(value, abs(protocol))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "CHUNK_BYTES", size)
        loaded = load_pickle(content)
    assert loaded.value == value
    assert loaded.stream_bytes == len(content)
    assert (repr(loaded.value), loaded.trailing_bytes) == (repr(value), 0)


def _fits_cpp(value: Any) -> bool:
    if isinstance(value, int):
        return value < 2**63
    if isinstance(value, (list, tuple)):
        return all(map(_fits_cpp, value))
    return all(map(_fits_cpp, value.values())) if isinstance(value, dict) else True


def test_readline_and_short_reads() -> None:
    # The pure-Python Unpickler asks so; the C one only at the end of a chunk.
    content = b"(lp0\nI1\naV" + b"a" * 2000 + b"\nap1\n."
    assert load_pickle(content).value == [1, "a" * 2000]
    assert text("é") == b"X\x02\0\0\0\xc3\xa9"
