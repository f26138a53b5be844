"""A damaged file gives a snapshot or an InputError, never anything else, and at once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapscope.errors import InputError
from snapscope.load import RawSnapshot
from tests import builders as b
from tests.load.samples import dump, load_bytes, write_like_cpp

SMALL = b.snapshot(
    traces=[[b.alloc(0x7F0000000000, 700, frames=[b.frame()], pool=(0, 1), time_us=1 << 50)]],
    segments=[b.segment(0x7F0000000000, [b.block(1024, requested=700), b.block(1024, state=b.INACTIVE)])],
    conf={"x": 0.5, "y": None, "z": (1, ("a", -1))},
)

Damage = Callable[[bytes], bytes]

OPCODES = b"\x80\x94\x95\x85\x86\x87\x8a\x8c\x93()]}.0123BCFGIJKLMNPQRSTUVXabcdeghijlopqrstu\n\x00\x01\xff"


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """One flip, cut, insertion or move, by shares of the file's length."""
    at, to = draw(st.floats(0, 1)), draw(st.floats(0, 1))
    kind = draw(st.sampled_from(["flip", "set", "cut", "drop", "insert", "copy"]))
    some = draw(st.binary(min_size=1, max_size=9) | st.lists(st.sampled_from(OPCODES), min_size=1).map(bytes))

    def damage(content: bytes) -> bytes:
        i, j = sorted((int(at * len(content)), int(to * len(content))))
        match kind:
            case "flip":
                return content[:i] + bytes([content[i] ^ (1 << j % 8)]) + content[i + 1 :] if i < j else content
            case "set":
                return content[:i] + some + content[i + len(some) :]
            case "cut":
                return content[:i]
            case "drop":
                return content[:i] + content[i + (j - i) % 20 :]
            case "insert":
                return content[:i] + some + content[i:]
            case _:
                return content[:j] + content[i : i + 40] + content[j:]

    return damage


@pytest.mark.parametrize(
    "content",
    [
        *(pytest.param(dump(SMALL, protocol), id=f"protocol {protocol}") for protocol in range(6)),
        pytest.param(write_like_cpp(SMALL), id="C++"),
        pytest.param(orjson.dumps(SMALL), id="JSON"),
        pytest.param(gzip.compress(dump(SMALL)), id="gzip"),
    ],
)
@given(some=st.lists(damages(), min_size=1, max_size=3))
@settings(max_examples=300)
def test_damaged_file(content: bytes, some: list[Damage]) -> None:
    for damage in some:
        content = damage(content)
    try:
        raw = load_bytes(content)
    except InputError as error:
        message = str(error)
        assert message.startswith("<bytes>: ")
        assert message.isprintable()
    else:
        assert isinstance(raw, RawSnapshot)


@pytest.mark.parametrize("content", [dump(SMALL), dump(SMALL, 0), write_like_cpp(SMALL), orjson.dumps(SMALL)])
def test_every_single_byte(content: bytes) -> None:
    for position in range(len(content)):
        for value in (0x00, 0x2E, 0x72, 0x86, 0x95, 0xFF, content[position] ^ 1):
            damaged = bytearray(content)
            damaged[position] = value
            with suppress(InputError):
                load_bytes(bytes(damaged))
