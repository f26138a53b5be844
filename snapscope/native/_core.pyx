# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True
"""The compiled parts, as Python sees them: see reader.h."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcpy
from libc.stdlib cimport free

import os
import struct

import numpy as np


cdef extern from "reader.h" nogil:
    enum:
        RD_MORE, RD_DONE, RD_ABANDON, RD_NO_MEMORY
        V_NONE, V_TRUE, V_FALSE, V_INT, V_FLOAT, V_STRING, V_PAIR, V_EMPTY_TUPLE, V_NODE, V_BIG
        N_LIST0, N_FROZEN, N_DICT0, N_LIST, N_DICT, N_FRAME, N_STACK, N_EVENT, N_USED, N_EVENTS
        K_FRAMES, K_FORWARD

    ctypedef struct Value:
        int64_t payload
        uint32_t tag
        uint32_t key

    ctypedef struct List:
        Value *items
        size_t length

    ctypedef struct Span:
        size_t first
        size_t length

    ctypedef struct Extra:
        uint32_t row
        uint32_t key
        int64_t value

    ctypedef struct Pair:
        int64_t first
        int64_t second

    ctypedef struct Vec:
        void *items
        size_t length

    ctypedef struct CReader "Reader":
        Vec nodes, text, text_ends, frame_items, frame_ends, stack_frames, stack_ends
        Vec pairs, lists, dict_items, dicts, runs, extras
        Value root
        uint64_t position
        int protocol
        size_t num_events
        int32_t *action
        int32_t *stack_of
        int32_t *context
        int32_t *metadata
        int32_t *pool
        int32_t *category
        int64_t *addr
        int64_t *size
        int64_t *stream
        int64_t *time
        uint16_t *mask

    CReader *rd_new(uint64_t seed)
    void rd_free(CReader *reader)
    void rd_free_machine(CReader *reader)
    int rd_feed(CReader *reader, const uint8_t *bytes, size_t length, size_t *used)

cdef extern from "walk.h" nogil:
    enum:
        WK_OK, WK_NO_MEMORY, WK_OUT_OF_RANGE

    ctypedef struct Map:
        size_t used

    ctypedef struct CWalk "Walk":
        Map end_of, start_of, borders, owner_below, owner_above, elder_by_end
        int64_t *sizes
        uint8_t *is_exact
        size_t num_rows
        const uint8_t *is_expandable
        const int64_t *owner
        size_t num_ranges
        int rounds, splits_small, follows_segments
        int64_t padding, alignment, max_split
        int64_t divisions[16]
        int64_t search_budget, num_odd, odd_bytes

    void wk_free(CWalk *walk)
    int map_set(Map *map, int64_t key, int64_t value)
    int wk_run(CWalk *walk, const int8_t *kind, const int64_t *row, const int64_t *addr, const int64_t *size,
               size_t length)


MORE = RD_MORE
DONE = RD_DONE
ABANDONED = RD_ABANDON


class Abandoned(Exception):
    """The file holds something that the compiled reader leaves to the Python path."""


cdef class Run:
    """A list of events within the value: its rows in the columns."""

    cdef readonly Py_ssize_t first
    cdef readonly Py_ssize_t length

    def __init__(self, Py_ssize_t first, Py_ssize_t length):
        self.first = first
        self.length = length


cdef class Reader:
    """Reads the opcodes of one pickle, piece by piece."""

    cdef CReader *_reader
    cdef list _strings
    cdef list _frames
    cdef list _stacks
    cdef dict _objects

    def __cinit__(self):
        (seed,) = struct.unpack("=Q", os.urandom(8))
        self._reader = rd_new(seed)
        if self._reader is NULL:
            raise MemoryError

    def __dealloc__(self):
        rd_free(self._reader)

    def feed(self, const uint8_t[::1] piece not None):
        """Read on; return the status and how many bytes are done with."""
        cdef size_t used = 0
        cdef int status
        cdef size_t length = <size_t>piece.shape[0]
        if not length:
            return RD_MORE, 0
        with nogil:
            status = rd_feed(self._reader, &piece[0], length, &used)
        return (RD_ABANDON if status == RD_NO_MEMORY else status), used

    @property
    def position(self):
        """Bytes read so far."""
        return self._reader.position

    @property
    def protocol(self):
        """What the pickle says."""
        return self._reader.protocol

    # ------------------------------------------------------------------------------ the value

    def take_value(self):
        """Make the value: plain Python objects, with a `Run` in place of each list of events.

        Raises:
            Abandoned: it has a form of which the Python path could see more.
        """
        rd_free_machine(self._reader)
        self._strings = self._decode_strings()
        self._frames = [None] * self._reader.frame_ends.length
        self._stacks = [None] * self._reader.stack_ends.length
        self._objects = {}
        cdef list todo = []
        root = self._make(self._reader.root, todo)
        cdef uint64_t node
        while todo:
            node = todo.pop()
            self._fill(node, todo)
        return root

    @property
    def strings(self):
        """All distinct strings, by number."""
        return self._strings

    def stack(self, Py_ssize_t number):
        """Return the list of frames with this number."""
        cdef CReader *r = self._reader
        if number < 0 or number >= <Py_ssize_t>r.stack_ends.length:
            raise IndexError(number)
        found = self._stacks[number]
        if found is not None:
            return found
        cdef uint64_t *ends = <uint64_t *>r.stack_ends.items
        cdef uint32_t *frames = <uint32_t *>r.stack_frames.items
        cdef size_t i
        cdef list stack = []
        for i in range(ends[number - 1] if number else 0, ends[number]):
            stack.append(self._frame(frames[i]))
        self._stacks[number] = stack
        return stack

    @property
    def num_stacks(self):
        """Number of stacks, the empty one included."""
        return self._reader.stack_ends.length

    @property
    def pools(self):
        """All distinct pairs, by number."""
        cdef Pair *pairs = <Pair *>self._reader.pairs.items
        cdef size_t i
        return [(pairs[i].first, pairs[i].second) for i in range(self._reader.pairs.length)]

    @property
    def num_events(self):
        """Number of events in all lists together."""
        return self._reader.num_events

    def _decode_strings(self):
        cdef CReader *r = self._reader
        cdef uint64_t *ends = <uint64_t *>r.text_ends.items
        cdef const char *text = <const char *>r.text.items
        cdef size_t i, first = 0
        cdef list strings = []
        try:
            for i in range(r.text_ends.length):
                strings.append(PyUnicode_DecodeUTF8(text + first, <Py_ssize_t>(ends[i] - first), "surrogatepass"))
                first = ends[i]
        except UnicodeDecodeError:
            raise Abandoned from None
        return strings

    cdef object _frame(self, size_t number):
        found = self._frames[number]
        if found is not None:
            return found
        cdef uint64_t *ends = <uint64_t *>self._reader.frame_ends.items
        cdef Value *items = <Value *>self._reader.frame_items.items
        cdef size_t i
        cdef dict frame = {}
        for i in range(ends[number - 1] if number else 0, ends[number]):
            # Scalars only: nothing is left to do.
            frame[self._strings[items[i].key]] = self._make(items[i], None)
        self._frames[number] = frame
        return frame

    cdef object _make(self, Value value, list todo):
        """Return the object for a value; containers are empty yet, and on the list `todo`."""
        cdef uint32_t tag = value.tag
        if tag == V_STRING:
            return self._strings[value.payload]
        if tag == V_INT:
            return value.payload
        if tag == V_BIG:
            return <uint64_t>value.payload
        if tag == V_NONE:
            return None
        if tag == V_TRUE:
            return True
        if tag == V_FALSE:
            return False
        if tag == V_EMPTY_TUPLE:
            return ()
        cdef double number
        if tag == V_FLOAT:
            memcpy(&number, &value.payload, 8)
            return number
        cdef Pair pair
        if tag == V_PAIR:
            pair = (<Pair *>self._reader.pairs.items)[value.payload]
            return pair.first, pair.second
        known = self._objects.get(value.payload)
        if known is not None:
            if isinstance(known, Run):
                raise Abandoned  # its events would be in two places
            return known
        cdef uint64_t node = (<uint64_t *>self._reader.nodes.items)[value.payload]
        cdef unsigned kind = <unsigned>(node >> 56)
        cdef Py_ssize_t content = <Py_ssize_t>(node & ((<uint64_t>1 << 56) - 1))
        cdef Span span
        if kind == N_FRAME:
            made = self._frame(content)
        elif kind == N_STACK:
            made = self.stack(content)
        elif kind == N_LIST or kind == N_LIST0 or kind == N_FROZEN:
            made = []
            if kind == N_LIST:
                todo.append(value.payload)
        elif kind == N_DICT or kind == N_DICT0:
            made = {}
            if kind == N_DICT:
                todo.append(value.payload)
        elif kind == N_EVENTS:
            span = (<Span *>self._reader.runs.items)[content]
            made = Run(span.first, span.length)
        else:
            raise Abandoned
        self._objects[value.payload] = made
        return made

    cdef _fill(self, uint64_t index, list todo):
        """Put what belongs into a list or a dict that was made before."""
        cdef uint64_t node = (<uint64_t *>self._reader.nodes.items)[index]
        cdef Py_ssize_t content = <Py_ssize_t>(node & ((<uint64_t>1 << 56) - 1))
        cdef size_t i
        cdef List values
        cdef Span span
        cdef Value *items
        if <unsigned>(node >> 56) == N_LIST:
            values = (<List *>self._reader.lists.items)[content]
            made_list = <list>self._objects[index]
            for i in range(values.length):
                made_list.append(self._make(values.items[i], todo))
            return
        span = (<Span *>self._reader.dicts.items)[content]
        items = <Value *>self._reader.dict_items.items + span.first
        made_dict = <dict>self._objects[index]
        for i in range(span.length):
            if items[i].key == K_FRAMES and not self._is_stack(items[i]):
                raise Abandoned
            made_dict[self._strings[items[i].key]] = self._make(items[i], todo)

    cdef bint _is_stack(self, Value value):
        if value.tag == V_NONE:
            return True
        if value.tag != V_NODE:
            return False
        cdef unsigned kind = <unsigned>((<uint64_t *>self._reader.nodes.items)[value.payload] >> 56)
        return kind == N_STACK or kind == N_LIST0 or kind == N_FROZEN

    # ----------------------------------------------------------------------------- the events

    def take_columns(self):
        """Return the columns of all events by name, and free them here one by one."""
        cdef CReader *r = self._reader
        cdef size_t n = r.num_events
        columns = {
            "action": _int32s(r.action, n),
            "stack": _int32s(r.stack_of, n),
            "compile_context": _int32s(r.context, n),
            "user_metadata": _int32s(r.metadata, n),
            "pool_id": _int32s(r.pool, n),
            "category": _int32s(r.category, n),
        }
        r.action = r.stack_of = r.context = r.metadata = r.pool = r.category = NULL
        columns["addr"] = _int64s(r.addr, n)
        r.addr = NULL
        columns["size"] = _int64s(r.size, n)
        r.size = NULL
        columns["stream"] = _int64s(r.stream, n)
        r.stream = NULL
        columns["time_us"] = _int64s(r.time, n)
        r.time = NULL
        cdef uint16_t[::1] mask = np.empty(n, np.uint16)
        if n:
            memcpy(&mask[0], r.mask, n * sizeof(uint16_t))
        free(r.mask)
        r.mask = NULL
        columns["mask"] = np.asarray(mask)
        r.num_events = 0
        return columns

    def take_extras(self):
        """Return what seldom keys there are: (row, key, value) as columns; a list's value is its node."""
        cdef Extra *extras = <Extra *>self._reader.extras.items
        cdef size_t i, n = self._reader.extras.length
        cdef int64_t[:, ::1] table = np.empty((3, n), np.int64)
        for i in range(n):
            table[0, i] = extras[i].row
            table[1, i] = extras[i].key
            table[2, i] = extras[i].value
        return np.asarray(table)

    def list_at(self, uint64_t index):
        """Return the list of strings that a `forward_frames` refers to."""
        if index >= self._reader.nodes.length:
            raise IndexError(index)
        cdef Value value
        value.tag = V_NODE
        value.payload = <int64_t>index
        value.key = 0
        cdef list todo = []
        made = self._make(value, todo)
        cdef uint64_t node
        while todo:
            node = todo.pop()
            self._fill(node, todo)
        return made


cdef object _int32s(int32_t *items, size_t n):
    cdef int32_t[::1] column = np.empty(n, np.int32)
    if n:
        memcpy(&column[0], items, n * sizeof(int32_t))
    free(items)
    return np.asarray(column)


cdef object _int64s(int64_t *items, size_t n):
    cdef int64_t[::1] column = np.empty(n, np.int64)
    if n:
        memcpy(&column[0], items, n * sizeof(int64_t))
    free(items)
    return np.asarray(column)


def renumber(list columns, int32_t[::1] numbers, number, none=None):
    """Replace numbers in columns of equal length by others, made in order of first appearance.

    Args:
        columns: read row by row across all of them.
        numbers: the new number by the old one, -2 where there is none yet.
        number: makes the new number for an old one.
        none: called once if an entry is -1, in its turn; those stay.

    Returns:
        The new columns.
    """
    cdef Py_ssize_t num_columns = len(columns), i, row, num_rows = len(columns[0]) if columns else 0
    if num_columns > 4:
        raise ValueError(num_columns)
    cdef int32_t[:, ::1] made = np.empty((num_columns, num_rows), np.int32)
    cdef const int32_t[::1] a, b, c, d
    a = b = c = d = np.empty(0, np.int32)
    if num_columns > 0:
        a = columns[0]
    if num_columns > 1:
        b = columns[1]
    if num_columns > 2:
        c = columns[2]
    if num_columns > 3:
        d = columns[3]
    cdef int32_t old, new
    cdef bint has_none = none is None
    for row in range(num_rows):
        for i in range(num_columns):
            # Each access is checked, so columns of different length can't hurt.
            old = a[row] if i == 0 else b[row] if i == 1 else c[row] if i == 2 else d[row]
            if old < 0:
                if not has_none:
                    has_none = True
                    none()
                made[i, row] = -1
                continue
            new = numbers[old]
            if new == -2:
                new = number(old)
                numbers[old] = new
            made[i, row] = new
    return list(np.asarray(made))


cdef class BlockWalk:
    """The block walk from its first event on: see walk.h.

    Args:
        sizes, is_exact: one row an allocation; written to.
        is_expandable, owner: one row a reserved range; owners are numbers.
    """

    cdef CWalk _walk
    cdef int64_t[::1] _sizes
    cdef uint8_t[::1] _is_exact
    cdef const uint8_t[::1] _is_expandable
    cdef const int64_t[::1] _owner

    def __init__(self, int64_t[::1] sizes not None, uint8_t[::1] is_exact not None,
                 const uint8_t[::1] is_expandable not None, const int64_t[::1] owner not None, *,
                 bint rounds, bint splits_small, bint follows_segments, int64_t padding, int64_t alignment,
                 int64_t max_split, divisions, int64_t search_budget):
        if sizes.shape[0] != is_exact.shape[0] or is_expandable.shape[0] != owner.shape[0]:
            raise ValueError("columns of different length")
        if alignment <= 0 or len(divisions) != 16:
            raise ValueError("impossible rules")
        self._sizes, self._is_exact, self._is_expandable, self._owner = sizes, is_exact, is_expandable, owner
        cdef CWalk *walk = &self._walk
        walk.num_rows, walk.num_ranges = sizes.shape[0], owner.shape[0]
        walk.sizes = &sizes[0] if walk.num_rows else NULL
        walk.is_exact = &is_exact[0] if walk.num_rows else NULL
        walk.is_expandable = &is_expandable[0] if walk.num_ranges else NULL
        walk.owner = &owner[0] if walk.num_ranges else NULL
        walk.rounds, walk.splits_small, walk.follows_segments = rounds, splits_small, follows_segments
        walk.padding, walk.alignment, walk.max_split = padding, alignment, max_split
        cdef int i
        for i in range(16):
            walk.divisions[i] = divisions[i]
        walk.search_budget = search_budget

    def __dealloc__(self):
        wk_free(&self._walk)

    def seed(self, dict end_of, dict start_of, set borders, dict owner_below, dict owner_above, dict elder_by_end):
        """Set up the state before the first event."""
        _fill_map(&self._walk.end_of, end_of)
        _fill_map(&self._walk.start_of, start_of)
        _fill_map(&self._walk.borders, dict.fromkeys(borders, 1))
        _fill_map(&self._walk.owner_below, owner_below)
        _fill_map(&self._walk.owner_above, owner_above)
        for row in elder_by_end.values():
            if not 0 <= row < <Py_ssize_t>self._walk.num_rows:
                raise IndexError(row)
        _fill_map(&self._walk.elder_by_end, elder_by_end)

    def run(self, const int8_t[::1] kind not None, const int64_t[::1] row not None, const int64_t[::1] addr not None,
            const int64_t[::1] size not None):
        """Take some steps."""
        cdef size_t length = <size_t>kind.shape[0]
        if row.shape[0] != kind.shape[0] or addr.shape[0] != kind.shape[0] or size.shape[0] != kind.shape[0]:
            raise ValueError("columns of different length")
        if not length:
            return
        cdef int status
        with nogil:
            status = wk_run(&self._walk, &kind[0], &row[0], &addr[0], &size[0], length)
        if status == WK_NO_MEMORY:
            raise MemoryError
        if status != WK_OK:
            raise IndexError("a step of no row")

    @property
    def num_odd(self):
        """Events that hand out or give back what isn't free."""
        return self._walk.num_odd

    @property
    def odd_bytes(self):
        """Bytes of those."""
        return self._walk.odd_bytes


cdef _fill_map(Map *map, dict items):
    for key, value in items.items():
        if map_set(map, key, value):
            raise MemoryError
