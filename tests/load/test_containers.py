from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import sys
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
import pytest

from snapscope.errors import (
    EmptyFileError,
    HostileError,
    InputError,
    MalformedError,
    NotASnapshotError,
    TruncatedError,
)
from snapscope.load import containers, read_snapshot
from tests.load.samples import SNAPSHOT, dump, header, load_bytes


def zstd(content: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression.zstd import compress

        return compress(content)
    import zstandard

    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


Pack = Callable[[bytes], bytes]
PACKS: dict[str, Pack] = {"gzip": gzip.compress, "zstd": zstd, "bzip2": bz2.compress, "xz": lzma.compress}
NUM_STRINGS = 150_000
BIG = dump({**SNAPSHOT, "more": [f"a string {number * number}" for number in range(NUM_STRINGS)]})
"""Some MiB, so that it takes several chunks."""


@cache
def big(name: str) -> bytes:
    return PACKS[name](BIG)


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("make", [dump, orjson.dumps])
def test_compression(name: str, make: Callable[[Any], bytes]) -> None:
    packed = PACKS[name](make(SNAPSHOT))
    raw = load_bytes(packed)
    assert raw.source.containers == (name,)
    assert raw.source.size_bytes == len(packed)
    assert raw.stream_bytes == len(make(SNAPSHOT))
    assert raw.source.encoding == ("pickle" if make is dump else "json")


@pytest.mark.parametrize("name", PACKS)
def test_large_file(name: str) -> None:
    packed = big(name)
    calls: list[tuple[int, int | None]] = []
    raw: Any = read_snapshot(io.BytesIO(packed), progress=lambda *call: calls.append(call))
    assert len(raw.value["more"]) == NUM_STRINGS
    # What is counted is the file as stored.
    assert calls[-1] == (len(packed), len(packed))


@pytest.mark.parametrize("name", PACKS)
def test_members_one_after_another(name: str) -> None:
    content = dump()
    raw = load_bytes(PACKS[name](content[:100]) + PACKS[name](content[100:]))
    assert (raw.value, raw.source.containers) == (SNAPSHOT, (name,))


def test_layers() -> None:
    raw = load_bytes(gzip.compress(zstd(bz2.compress(dump()))))
    assert raw.source.containers == ("gzip", "zstd", "bzip2")
    assert raw.value == SNAPSHOT


def test_too_many_layers() -> None:
    packed = dump()
    for _ in range(4):
        packed = gzip.compress(packed)
    with pytest.raises(HostileError, match="compressed more than 3 times"):
        load_bytes(packed)


def test_zstd_with_a_skippable_frame() -> None:
    # As pzstd writes them.
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"\0\0\0\0"
    assert load_bytes(skippable + zstd(dump())).value == SNAPSHOT


@pytest.mark.parametrize("name", PACKS)
def test_nothing_inside(name: str) -> None:
    with pytest.raises(EmptyFileError, match=f"holds 0 bytes inside its {name} stream"):
        load_bytes(PACKS[name](b""))


@pytest.mark.parametrize("name", PACKS)
@pytest.mark.parametrize("share", [0.3, 0.7, 0.97])
def test_cut_off(name: str, share: float) -> None:
    packed = big(name)
    with pytest.raises(TruncatedError, match="ends in the middle of"):
        load_bytes(packed[: int(len(packed) * share)])


def test_gzip_without_its_checksum_is_cut_off() -> None:
    # The pickle inside is whole, but nobody can know.
    with pytest.raises(TruncatedError, match="ends in the middle of its gzip stream"):
        load_bytes(gzip.compress(dump())[:-6])


@pytest.mark.parametrize("name", PACKS)
def test_flipped_bits(name: str) -> None:
    packed = bytearray(big(name))
    for position in range(len(packed) // 2, len(packed) // 2 + 40):
        packed[position] ^= 0x55
    with pytest.raises(InputError):
        load_bytes(bytes(packed))


@pytest.mark.parametrize("name", PACKS)
def test_flipped_checksum(name: str) -> None:
    packed = bytearray(PACKS[name](dump()))
    packed[-6 if name == "gzip" else -3] ^= 1
    with pytest.raises(MalformedError, match=f"is no valid {name} stream"):
        load_bytes(bytes(packed))


def test_gzip_followed_by_junk() -> None:
    with pytest.raises(MalformedError, match="is no valid gzip stream"):
        load_bytes(gzip.compress(dump()) + b"junk")


# ------------------------------------------------------------------------------------------- bombs


def gzip_of(head: bytes, fill: bytes, size: int) -> bytes:
    """Compress `head` and then `fill` over and over, `size` bytes in all, without having them in memory."""
    packer = zlib.compressobj(9, wbits=31)
    block = fill * ((1 << 20) // len(fill))
    parts = [packer.compress(head)]
    parts += [packer.compress(block) for _ in range(size >> 20)]
    return b"".join(parts) + packer.flush()


def test_pickle_bomb() -> None:
    # 1000:1, all of it one list of None.
    bomb = gzip_of(header() + b"](", b"N", 100 << 20)
    assert len(bomb) < 200_000
    with pytest.raises(HostileError, match="unpacks to more than 500 times its size"):
        load_bytes(bomb)


def test_bomb_in_a_bomb() -> None:
    bomb = gzip.compress(gzip_of(b'{"segments": [', b" ", 100 << 20))
    with pytest.raises(HostileError, match=r"unpacks to more than 2,000 times its size"):
        load_bytes(bomb)


def test_bomb_of_zstd_is_unpacked_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "FREE_BYTES", 1 << 20)
    bomb = zstd(b"[" + b" " * (200 << 20))
    assert len(bomb) < 40_000
    with pytest.raises(HostileError, match="unpacks to more than"):
        load_bytes(bomb)


def test_bomb_after_the_end_of_the_pickle() -> None:
    bomb = gzip_of(dump(), b"\0", 100 << 20)
    with pytest.raises(HostileError, match="unpacks to more than 500 times"):
        load_bytes(bomb)


def test_small_files_may_pack_well() -> None:
    # A ratio above all bounds, but only some MiB.
    value = {**SNAPSHOT, "padding": "x" * (20 << 20)}
    packed = zstd(dump(value))
    assert len(packed) < len(dump(value)) // 2000
    assert load_bytes(packed).value == value


def test_xz_that_asks_for_a_huge_dictionary() -> None:
    packed = lzma.compress(dump(), check=lzma.CHECK_NONE, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    # Byte 16 of the block header is the size of the dictionary: 40 is 4 GiB − 1.
    block = bytearray(packed[12:24])
    assert block[:4] == b"\x02\x00\x21\x01"
    block[4] = 40
    block[8:12] = struct.pack("<I", zlib.crc32(block[:8]))
    with pytest.raises(MalformedError, match="is no valid xz stream: Memory usage limit"):
        load_bytes(packed[:12] + bytes(block) + packed[24:])


def test_zstd_that_asks_for_a_huge_window() -> None:
    # A frame whose descriptor claims a window of 2⁴⁰ bytes, and one empty last block.
    frame = b"\x28\xb5\x2f\xfd" + bytes([0x00, (40 - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(MalformedError, match="is no valid zstd stream"):
        load_bytes(frame)


def test_text_inside_is_told_by_its_content() -> None:
    with pytest.raises(NotASnapshotError, match=r"<bytes>: neither a pickle nor JSON .* starts with hello"):
        load_bytes(gzip.compress(b"hello"))


def test_monotonous_files_are_no_bombs() -> None:
    value = {"segments": [], "events": [{"action": "alloc", "frames": []} for _ in range(1000)]}
    assert load_bytes(gzip.compress(dump(value))).value == value
