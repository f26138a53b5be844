/* From the opcodes of a pickle straight to columns: the core of the compiled reader.
 *
 * It knows no Python, so that it can be fuzzed by itself (tests/fuzz). It is a stack machine over the few
 * opcodes that snapshots are written with (protocols 2 to 5); whatever else it meets, it abandons the file,
 * and the Python path reads it from the start. It never guesses and never reports an error of its own.
 *
 * - Input comes in pieces; every access to one is checked against its end.
 * - Nothing is allocated on a claim: a length takes memory only once that many bytes have come.
 * - No recursion. Stack, memo and all tables grow by at most a constant number of bytes per byte read.
 * - A hash table that collides (a made-up file) abandons after MAX_PROBES steps.
 *
 * A dict with `action` becomes a row of the event columns when it is filled, a dict with `name` and `filename`
 * a frame, a list of frames a stack; equal ones share a number. All else stays a small tree, of which the
 * Python path's own code makes segments, annotations and settings.
 */
#ifndef SNAPSCOPE_READER_H
#define SNAPSCOPE_READER_H

#include <stddef.h>
#include <stdint.h>

enum { RD_MORE = 0, RD_DONE = 1, RD_ABANDON = 2, RD_NO_MEMORY = 3 };

/* What a value is. A node is a container; its kind is in the table of nodes. BIG is an integer from 2^63 to 2^64 - 1. */
enum { V_NONE, V_TRUE, V_FALSE, V_INT, V_FLOAT, V_STRING, V_PAIR, V_EMPTY_TUPLE, V_NODE, V_BIG };

typedef struct {
  int64_t payload;
  uint32_t tag;
  uint32_t key; /* of an item of a dict: number of the string */
} Value;

/* Kinds of nodes. */
enum {
  N_LIST0,  /* an empty list */
  N_FROZEN, /* an empty list that an event refers to */
  N_DICT0,  /* an empty dict */
  N_LIST,   /* index of a list */
  N_DICT,   /* index of a dict */
  N_FRAME,  /* number of a frame */
  N_STACK,  /* number of a stack */
  N_EVENT,  /* row of an event */
  N_USED,   /* an event that stands in a list */
  N_EVENTS, /* index of a run of events */
  N_STRING, /* these three only so that the memo can hold them */
  N_PAIR,
  N_EMPTY_TUPLE
};

typedef struct {
  Value *items;
  size_t length, room;
} List;

typedef struct {
  size_t first, length;
} Span;

typedef struct {
  uint32_t row, key;
  int64_t value;
} Extra;

typedef struct {
  int64_t first, second;
} Pair;

/* Strings with a number of their own from the start: keys of events and frames. */
enum {
  K_ACTION,
  K_ADDR,
  K_SIZE,
  K_STREAM,
  K_FRAMES,
  K_TIME,
  K_CONTEXT,
  K_METADATA,
  K_POOL,
  K_CATEGORY, /* the common keys: bit K_x of an event's mask */
  K_DEVICE_FREE,
  K_FORWARD,
  K_NAME,
  K_FILENAME,
  NUM_KEYS
};

typedef struct {
  void *items;
  size_t length, room; /* in items */
} Vec;

typedef struct {
  uint32_t *slots; /* number + 1; 0 is free */
  size_t size;     /* a power of two, or 0 */
  size_t used;
} Table;

typedef struct {
  /* the machine */
  Vec stack; /* Value */
  Vec marks; /* size_t: length of the stack below */
  Vec memo;  /* uint32_t: nodes */
  Vec nodes; /* uint64_t: kind << 56 | payload */
  uint64_t position, frame_left, small_end;
  uint32_t small_run;
  int is_framed, num_frames_opened, protocol, status;
  uint64_t seed;
  Value root;
  /* what was read */
  Vec text;         /* char: all distinct strings */
  Vec text_ends;    /* uint64_t */
  Vec frame_items;  /* Value */
  Vec frame_ends;   /* uint64_t */
  Vec stack_frames; /* uint32_t */
  Vec stack_ends;   /* uint64_t; stack 0 is the empty one */
  Vec pairs;        /* Pair */
  Vec lists;        /* List */
  Vec dict_items;   /* Value */
  Vec dicts;        /* Span */
  Vec runs;         /* Span: rows of events */
  Vec extras;       /* Extra */
  Table strings_by_hash, frames_by_hash, stacks_by_hash, pairs_by_hash;
  /* one row an event */
  size_t num_events, events_room;
  int32_t *action, *stack_of, *context, *metadata, *pool, *category;
  int64_t *addr, *size, *stream, *time;
  uint16_t *mask;
} Reader;

/* Make a reader; NULL if there is no memory. The seed keeps hashes from being foreseen. */
Reader *rd_new(uint64_t seed);
void rd_free(Reader *reader);

/* Give back what only the machine needed; the values stay. */
void rd_free_machine(Reader *reader);

/* Read on. *used tells how many bytes are done with: pass the rest again, with what follows it.
 * RD_MORE: there is more to come. RD_DONE: STOP was read, the value is in `root`. */
int rd_feed(Reader *reader, const uint8_t *bytes, size_t length, size_t *used);

#endif
