#include "reader.h"

#include <stdlib.h>
#include <string.h>

#define MAX_PROBES 1000
#define MAX_STRING_BYTES (1u << 20)
#define MAX_ROWS ((size_t)1 << 30)
#define MAX_FRAME_KEYS 16
#define MAX_EXTRAS 32
#define FREE_FRAMES 64
#define PAYLOAD ((UINT64_C(1) << 56) - 1)
#define KIND(node) ((unsigned)((node) >> 56))

static const char *const KEYS[NUM_KEYS] = {
    "action",          "addr",          "size",    "stream",   "frames",      "time_us",        "compile_context",
    "user_metadata",   "pool_id",       "category", "device_free", "forward_frames", "name", "filename",
};

/* ------------------------------------------------------------------------------------- memory */

static int grow_slowly(Vec *vec, size_t more, size_t item_bytes) {
  size_t room = vec->room ? vec->room : 64;
  while (room - vec->length < more) {
    if (room > SIZE_MAX / 4 / item_bytes) return 0;
    room *= 2;
  }
  void *items = realloc(vec->items, room * item_bytes);
  if (!items) return 0;
  vec->items = items;
  vec->room = room;
  return 1;
}

static inline int grow(Vec *vec, size_t more, size_t item_bytes) {
  return more <= vec->room - vec->length || grow_slowly(vec, more, item_bytes);
}

#define AT(vec, type, index) (((type *)(vec).items)[index])

#define PUSH(vec, type, value)                     \
  do {                                             \
    if (!grow(&(vec), 1, sizeof(type))) return RD_NO_MEMORY; \
    AT(vec, type, (vec).length) = (value);         \
    (vec).length++;                                \
  } while (0)

static void drop(Vec *vec) {
  free(vec->items);
  vec->items = NULL;
  vec->length = vec->room = 0;
}

/* -------------------------------------------------------------------------------------- hashes */

static uint64_t scramble(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  return hash ^ (hash >> 29);
}

static uint64_t hash_bytes(uint64_t seed, const uint8_t *bytes, size_t length) {
  uint64_t hash = scramble(seed, length);
  while (length >= 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = scramble(hash, word);
    bytes += 8;
    length -= 8;
  }
  if (length) {
    uint64_t word = 0;
    memcpy(&word, bytes, length);
    hash = scramble(hash, word);
  }
  hash = scramble(hash, seed);
  return hash ^ (hash >> 32);
}

static uint64_t hash_values(uint64_t seed, const Value *values, size_t length) {
  uint64_t hash = scramble(seed, length);
  for (size_t i = 0; i < length; i++) {
    hash = scramble(hash, (uint64_t)values[i].payload);
    hash = scramble(hash, ((uint64_t)values[i].tag << 32) | values[i].key);
  }
  return hash ^ (hash >> 32);
}

static uint64_t hash_numbers(uint64_t seed, const uint32_t *numbers, size_t length) {
  uint64_t hash = scramble(seed, length);
  for (size_t i = 0; i < length; i++) hash = scramble(hash, numbers[i]);
  return hash ^ (hash >> 32);
}

static uint64_t hash_pair(uint64_t seed, Pair pair) {
  uint64_t hash = scramble(scramble(seed, (uint64_t)pair.first), (uint64_t)pair.second);
  return hash ^ (hash >> 32);
}

typedef struct {
  size_t first, length;
} Range;

static Range range_of(const Vec *ends, size_t number) {
  size_t first = number ? (size_t)AT(*ends, uint64_t, number - 1) : 0;
  Range range = {first, (size_t)AT(*ends, uint64_t, number) - first};
  return range;
}

static uint64_t hash_of(const Reader *r, const Table *table, uint32_t number) {
  if (table == &r->strings_by_hash) {
    Range range = range_of(&r->text_ends, number);
    return hash_bytes(r->seed, (const uint8_t *)r->text.items + range.first, range.length);
  }
  if (table == &r->frames_by_hash) {
    Range range = range_of(&r->frame_ends, number);
    return hash_values(r->seed, (const Value *)r->frame_items.items + range.first, range.length);
  }
  if (table == &r->stacks_by_hash) {
    Range range = range_of(&r->stack_ends, number);
    return hash_numbers(r->seed, (const uint32_t *)r->stack_frames.items + range.first, range.length);
  }
  return hash_pair(r->seed, AT(r->pairs, Pair, number));
}

/* Make room for one more, so that a free slot is always found. */
static int table_reserve(const Reader *r, Table *table) {
  if (table->size && table->used + 1 <= table->size / 2) return RD_MORE;
  size_t size = table->size ? table->size * 2 : 256;
  if (size > SIZE_MAX / sizeof(uint32_t)) return RD_NO_MEMORY;
  uint32_t *slots = calloc(size, sizeof(uint32_t));
  if (!slots) return RD_NO_MEMORY;
  for (size_t i = 0; i < table->size; i++) {
    if (!table->slots[i]) continue;
    size_t place = (size_t)hash_of(r, table, table->slots[i] - 1) & (size - 1);
    size_t probes = 0;
    while (slots[place]) {
      if (++probes > MAX_PROBES) {
        free(slots);
        return RD_ABANDON;
      }
      place = (place + 1) & (size - 1);
    }
    slots[place] = table->slots[i];
  }
  free(table->slots);
  table->slots = slots;
  table->size = size;
  return RD_MORE;
}

static int intern_string(Reader *r, const uint8_t *bytes, size_t length, uint32_t *number) {
  Table *table = &r->strings_by_hash;
  int status = table_reserve(r, table);
  if (status) return status;
  size_t place = (size_t)hash_bytes(r->seed, bytes, length) & (table->size - 1);
  for (size_t probes = 0; table->slots[place]; probes++) {
    Range range = range_of(&r->text_ends, table->slots[place] - 1);
    if (range.length == length && !memcmp((uint8_t *)r->text.items + range.first, bytes, length)) {
      *number = table->slots[place] - 1;
      return RD_MORE;
    }
    if (probes > MAX_PROBES) return RD_ABANDON;
    place = (place + 1) & (table->size - 1);
  }
  if (r->text_ends.length >= MAX_ROWS) return RD_ABANDON;
  if (!grow(&r->text, length + 1, 1)) return RD_NO_MEMORY;
  memcpy((uint8_t *)r->text.items + r->text.length, bytes, length);
  r->text.length += length;
  PUSH(r->text_ends, uint64_t, (uint64_t)r->text.length);
  *number = (uint32_t)(r->text_ends.length - 1);
  table->slots[place] = *number + 1;
  table->used++;
  return RD_MORE;
}

static int intern_frame(Reader *r, const Value *items, size_t length, uint32_t *number) {
  Table *table = &r->frames_by_hash;
  int status = table_reserve(r, table);
  if (status) return status;
  size_t place = (size_t)hash_values(r->seed, items, length) & (table->size - 1);
  for (size_t probes = 0; table->slots[place]; probes++) {
    Range range = range_of(&r->frame_ends, table->slots[place] - 1);
    const Value *known = (const Value *)r->frame_items.items + range.first;
    size_t i = range.length == length ? 0 : length + 1;
    while (i < length && known[i].payload == items[i].payload && known[i].tag == items[i].tag && known[i].key == items[i].key) i++;
    if (i == length) {
      *number = table->slots[place] - 1;
      return RD_MORE;
    }
    if (probes > MAX_PROBES) return RD_ABANDON;
    place = (place + 1) & (table->size - 1);
  }
  if (r->frame_ends.length >= MAX_ROWS) return RD_ABANDON;
  for (size_t i = 0; i < length; i++) PUSH(r->frame_items, Value, items[i]);
  PUSH(r->frame_ends, uint64_t, (uint64_t)r->frame_items.length);
  *number = (uint32_t)(r->frame_ends.length - 1);
  table->slots[place] = *number + 1;
  table->used++;
  return RD_MORE;
}

/* Intern the stack whose frames have just been pushed onto `stack_frames`. */
static int intern_stack(Reader *r, size_t length, uint32_t *number) {
  Table *table = &r->stacks_by_hash;
  int status = table_reserve(r, table);
  if (status) return status;
  size_t first = r->stack_frames.length - length;
  const uint32_t *frames = (const uint32_t *)r->stack_frames.items;
  size_t place = (size_t)hash_numbers(r->seed, frames + first, length) & (table->size - 1);
  for (size_t probes = 0; table->slots[place]; probes++) {
    Range range = range_of(&r->stack_ends, table->slots[place] - 1);
    if (range.length == length && !memcmp(frames + range.first, frames + first, length * sizeof(uint32_t))) {
      r->stack_frames.length = first;
      *number = table->slots[place] - 1;
      return RD_MORE;
    }
    if (probes > MAX_PROBES) return RD_ABANDON;
    place = (place + 1) & (table->size - 1);
  }
  if (r->stack_ends.length >= MAX_ROWS) return RD_ABANDON;
  PUSH(r->stack_ends, uint64_t, (uint64_t)r->stack_frames.length);
  *number = (uint32_t)(r->stack_ends.length - 1);
  table->slots[place] = *number + 1;
  table->used++;
  return RD_MORE;
}

static int intern_pair(Reader *r, Pair pair, uint32_t *number) {
  Table *table = &r->pairs_by_hash;
  int status = table_reserve(r, table);
  if (status) return status;
  size_t place = (size_t)hash_pair(r->seed, pair) & (table->size - 1);
  for (size_t probes = 0; table->slots[place]; probes++) {
    Pair known = AT(r->pairs, Pair, table->slots[place] - 1);
    if (known.first == pair.first && known.second == pair.second) {
      *number = table->slots[place] - 1;
      return RD_MORE;
    }
    if (probes > MAX_PROBES) return RD_ABANDON;
    place = (place + 1) & (table->size - 1);
  }
  if (r->pairs.length >= MAX_ROWS) return RD_ABANDON;
  PUSH(r->pairs, Pair, pair);
  *number = (uint32_t)(r->pairs.length - 1);
  table->slots[place] = *number + 1;
  table->used++;
  return RD_MORE;
}

/* -------------------------------------------------------------------------------------- values */

static inline int push(Reader *r, uint32_t tag, int64_t payload) {
  Value value = {payload, tag, 0};
  PUSH(r->stack, Value, value);
  return RD_MORE;
}

static inline int new_node(Reader *r, unsigned kind, uint64_t payload, uint32_t *index) {
  if (r->nodes.length >= UINT32_MAX) return RD_ABANDON;
  PUSH(r->nodes, uint64_t, ((uint64_t)kind << 56) | payload);
  *index = (uint32_t)(r->nodes.length - 1);
  return RD_MORE;
}

static inline int push_container(Reader *r, unsigned kind) {
  uint32_t index;
  int status = new_node(r, kind, 0, &index);
  return status ? status : push(r, V_NODE, index);
}

/* Where the values above the innermost mark begin. */
static inline size_t fence(const Reader *r) { return r->marks.length ? AT(r->marks, size_t, r->marks.length - 1) : 0; }

static inline int memoize(Reader *r) {
  if (r->stack.length <= fence(r)) return RD_ABANDON;
  Value top = AT(r->stack, Value, r->stack.length - 1);
  uint32_t index;
  int status = RD_MORE;
  switch (top.tag) {
    case V_NODE:
      index = (uint32_t)top.payload;
      break;
    case V_STRING:
      status = new_node(r, N_STRING, (uint64_t)top.payload, &index);
      break;
    case V_PAIR:
      status = new_node(r, N_PAIR, (uint64_t)top.payload, &index);
      break;
    case V_EMPTY_TUPLE:
      status = new_node(r, N_EMPTY_TUPLE, 0, &index);
      break;
    default:
      return RD_ABANDON;
  }
  if (status) return status;
  PUSH(r->memo, uint32_t, index);
  return RD_MORE;
}

/* Writers number their memo entries one by one; other orders are the Python path's. */
static int put(Reader *r, uint64_t index) { return index == r->memo.length ? memoize(r) : RD_ABANDON; }

static inline int get(Reader *r, uint64_t index) {
  if (index >= r->memo.length) return RD_ABANDON;
  uint32_t node = AT(r->memo, uint32_t, index);
  uint64_t content = AT(r->nodes, uint64_t, node);
  switch (KIND(content)) {
    case N_STRING:
      return push(r, V_STRING, (int64_t)(content & PAYLOAD));
    case N_PAIR:
      return push(r, V_PAIR, (int64_t)(content & PAYLOAD));
    case N_EMPTY_TUPLE:
      return push(r, V_EMPTY_TUPLE, 0);
    case N_EVENT:
    case N_USED:
    case N_EVENTS:
      return RD_ABANDON; /* an event stands in one place */
    default:
      return push(r, V_NODE, node);
  }
}

static int list_add(Reader *r, List *list, const Value *values, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (values[i].tag == V_NODE) {
      unsigned kind = KIND(AT(r->nodes, uint64_t, values[i].payload));
      if (kind == N_EVENT || kind == N_USED) return RD_ABANDON;
    }
  }
  /* Most lists are filled once: no room to spare at first, or many short ones would take a lot. */
  Vec vec = {list->items, list->length, list->room};
  int ok = 1;
  if (list->items) {
    ok = grow(&vec, length, sizeof(Value));
  } else {
    vec.items = malloc(length * sizeof(Value));
    vec.room = vec.items ? length : 0;
    ok = vec.items != NULL;
  }
  list->items = vec.items;
  list->room = vec.room;
  if (!ok) return RD_NO_MEMORY;
  memcpy(list->items + list->length, values, length * sizeof(Value));
  list->length += length;
  return RD_MORE;
}

/* Append the values from `first` on to the list below them, and take them off the stack. */
static int append(Reader *r, size_t target, size_t first) {
  size_t length = r->stack.length - first;
  Value owner = AT(r->stack, Value, target);
  if (owner.tag != V_NODE) return RD_ABANDON;
  uint64_t *node = &AT(r->nodes, uint64_t, owner.payload);
  unsigned kind = KIND(*node);
  if (kind != N_LIST0 && kind != N_LIST && kind != N_EVENTS) return RD_ABANDON;
  r->stack.length = first;
  if (!length) return RD_MORE;
  const Value *values = (const Value *)r->stack.items + first;
  int status;
  if (kind == N_LIST) {
    return list_add(r, &AT(r->lists, List, *node & PAYLOAD), values, length);
  }
  if (kind == N_LIST0) {
    size_t i = 0;
    if (!grow(&r->stack_frames, length, sizeof(uint32_t))) return RD_NO_MEMORY;
    uint32_t *frames = (uint32_t *)r->stack_frames.items + r->stack_frames.length;
    for (; i < length && values[i].tag == V_NODE; i++) {
      uint64_t content = AT(r->nodes, uint64_t, values[i].payload);
      if (KIND(content) != N_FRAME) break;
      frames[i] = (uint32_t)(content & PAYLOAD);
    }
    if (i == length) {
      uint32_t number = 0;
      r->stack_frames.length += length;
      status = intern_stack(r, length, &number);
      *node = ((uint64_t)N_STACK << 56) | number;
      return status;
    }
    if (values[0].tag != V_NODE || KIND(AT(r->nodes, uint64_t, values[0].payload)) != N_EVENT) {
      List list = {NULL, 0, 0};
      PUSH(r->lists, List, list);
      *node = ((uint64_t)N_LIST << 56) | (r->lists.length - 1);
      return list_add(r, &AT(r->lists, List, r->lists.length - 1), values, length);
    }
    Span run = {(size_t)(AT(r->nodes, uint64_t, values[0].payload) & PAYLOAD), 0};
    PUSH(r->runs, Span, run);
    *node = ((uint64_t)N_EVENTS << 56) | (r->runs.length - 1);
  }
  Span *run = &AT(r->runs, Span, *node & PAYLOAD);
  for (size_t i = 0; i < length; i++) {
    if (values[i].tag != V_NODE) return RD_ABANDON;
    uint64_t *event = &AT(r->nodes, uint64_t, values[i].payload);
    if (KIND(*event) != N_EVENT || (*event & PAYLOAD) != run->first + run->length) return RD_ABANDON;
    *event = ((uint64_t)N_USED << 56) | (*event & PAYLOAD);
    run->length++;
  }
  return RD_MORE;
}

/* -------------------------------------------------------------------------------------- events */

static int grow_events(Reader *r) {
  if (r->num_events < r->events_room) return RD_MORE;
  if (r->num_events >= MAX_ROWS) return RD_ABANDON;
  size_t room = r->events_room ? r->events_room + r->events_room / 2 : 1024;
#define GROW(column)                                                   \
  do {                                                                 \
    void *items = realloc(r->column, room * sizeof(*r->column));       \
    if (!items) return RD_NO_MEMORY;                                   \
    r->column = items;                                                 \
  } while (0)
  GROW(action);
  GROW(stack_of);
  GROW(context);
  GROW(metadata);
  GROW(pool);
  GROW(category);
  GROW(addr);
  GROW(size);
  GROW(stream);
  GROW(time);
  GROW(mask);
#undef GROW
  r->events_room = room;
  return RD_MORE;
}

static int add_extra(Reader *r, size_t first_extra, uint32_t key, int64_t value) {
  if (r->extras.length - first_extra >= MAX_EXTRAS) return RD_ABANDON;
  for (size_t i = first_extra; i < r->extras.length; i++)
    if (AT(r->extras, Extra, i).key == key) return RD_ABANDON;
  Extra extra = {(uint32_t)r->num_events, key, value};
  PUSH(r->extras, Extra, extra);
  return RD_MORE;
}

/* Make a row of the dict whose keys and values are given; only values as PyTorch writes them. */
static int add_event(Reader *r, const Value *items, size_t length) {
  int status = grow_events(r);
  if (status) return status;
  size_t row = r->num_events, first_extra = r->extras.length;
  unsigned mask = 0;
  r->action[row] = r->context[row] = r->metadata[row] = r->category[row] = -1;
  r->stack_of[row] = r->pool[row] = -1;
  r->addr[row] = 0;
  r->size[row] = r->time[row] = -1;
  r->stream[row] = 0;
  for (size_t i = 0; i < length; i += 2) {
    uint32_t key = (uint32_t)items[i].payload;
    Value value = items[i + 1];
    if (key <= K_CATEGORY) {
      if (mask & (1u << key)) return RD_ABANDON;
      mask |= 1u << key;
    }
    switch (key) {
      case K_ACTION:
      case K_CONTEXT:
      case K_METADATA:
      case K_CATEGORY: {
        if (value.tag != V_STRING) return RD_ABANDON;
        int32_t *column = key == K_ACTION ? r->action : key == K_CONTEXT ? r->context : key == K_METADATA ? r->metadata : r->category;
        column[row] = (int32_t)value.payload;
        break;
      }
      case K_ADDR:
        if (value.tag != V_INT || value.payload < 0) return RD_ABANDON;
        r->addr[row] = value.payload;
        break;
      case K_SIZE:
        if (value.tag != V_INT) return RD_ABANDON;
        r->size[row] = value.payload;
        break;
      case K_STREAM:
        if (value.tag != V_INT) return RD_ABANDON;
        r->stream[row] = value.payload;
        break;
      case K_TIME:
        if (value.tag != V_INT) return RD_ABANDON;
        r->time[row] = value.payload;
        break;
      case K_POOL:
        if (value.tag == V_PAIR)
          r->pool[row] = (int32_t)value.payload;
        else if (value.tag != V_NONE && value.tag != V_EMPTY_TUPLE)
          return RD_ABANDON;
        break;
      case K_FRAMES: {
        if (value.tag == V_NONE) break;
        if (value.tag != V_NODE) return RD_ABANDON;
        uint64_t *node = &AT(r->nodes, uint64_t, value.payload);
        if (KIND(*node) == N_STACK) {
          r->stack_of[row] = (int32_t)(*node & PAYLOAD);
        } else if (KIND(*node) == N_LIST0 || KIND(*node) == N_FROZEN) {
          *node = (uint64_t)N_FROZEN << 56;
          r->stack_of[row] = 0;
        } else {
          return RD_ABANDON;
        }
        break;
      }
      case K_DEVICE_FREE:
        if (value.tag != V_INT) return RD_ABANDON;
        status = add_extra(r, first_extra, key, value.payload);
        if (status) return status;
        break;
      case K_FORWARD: {
        if (value.tag != V_NODE) return RD_ABANDON;
        unsigned kind = KIND(AT(r->nodes, uint64_t, value.payload));
        if (kind != N_LIST && kind != N_LIST0 && kind != N_FROZEN) return RD_ABANDON;
        status = add_extra(r, first_extra, key, value.payload);
        if (status) return status;
        break;
      }
      default:
        status = add_extra(r, first_extra, key, 0);
        if (status) return status;
    }
  }
  r->mask[row] = (uint16_t)mask;
  r->num_events++;
  return RD_MORE;
}

/* Fill the empty dict at `target` with the keys and values from `first` on. */
static int set_items(Reader *r, size_t target, size_t first) {
  size_t length = r->stack.length - first;
  Value owner = AT(r->stack, Value, target);
  if (owner.tag != V_NODE || length % 2) return RD_ABANDON;
  if (KIND(AT(r->nodes, uint64_t, owner.payload)) != N_DICT0) return RD_ABANDON;
  r->stack.length = first;
  if (!length) return RD_MORE;
  Value *items = (Value *)r->stack.items + first;
  int is_event = 0, has_name = 0, has_file = 0, is_flat = length <= 2 * MAX_FRAME_KEYS;
  for (size_t i = 0; i < length; i += 2) {
    if (items[i].tag != V_STRING) return RD_ABANDON;
    uint32_t tag = items[i + 1].tag;
    is_event |= items[i].payload == K_ACTION && tag == V_STRING;
    has_name |= items[i].payload == K_NAME;
    has_file |= items[i].payload == K_FILENAME;
    is_flat = is_flat && (tag == V_STRING || tag == V_INT || tag == V_BIG || tag == V_NONE);
  }
  uint64_t content;
  if (is_event) {
    int status = add_event(r, items, length);
    if (status) return status;
    content = ((uint64_t)N_EVENT << 56) | (r->num_events - 1);
  } else {
    /* From pairs to values with their keys, in place. */
    for (size_t i = 0; i < length / 2; i++) {
      uint32_t key = (uint32_t)items[2 * i].payload;
      items[i] = items[2 * i + 1];
      items[i].key = key;
    }
    length /= 2;
    if (has_name && has_file && is_flat) {
      uint32_t number = 0;
      int status = intern_frame(r, items, length, &number);
      if (status) return status;
      content = ((uint64_t)N_FRAME << 56) | number;
    } else {
      for (size_t i = 0; i < length; i++) {
        if (items[i].tag == V_NODE) {
          unsigned kind = KIND(AT(r->nodes, uint64_t, items[i].payload));
          if (kind == N_EVENT || kind == N_USED) return RD_ABANDON;
        }
      }
      Span span = {r->dict_items.length, length};
      if (!grow(&r->dict_items, length, sizeof(Value))) return RD_NO_MEMORY;
      memcpy((Value *)r->dict_items.items + r->dict_items.length, items, length * sizeof(Value));
      r->dict_items.length += length;
      PUSH(r->dicts, Span, span);
      content = ((uint64_t)N_DICT << 56) | (r->dicts.length - 1);
    }
  }
  AT(r->nodes, uint64_t, owner.payload) = content;
  return RD_MORE;
}

/* --------------------------------------------------------------------------------- the machine */

static uint64_t little(const uint8_t *bytes, size_t length) {
  uint64_t number = 0;
  for (size_t i = 0; i < length; i++) number |= (uint64_t)bytes[i] << (8 * i);
  return number;
}

/* Take off the innermost mark; `first` is where the values above it begin, `target` what is below. */
static int pop_mark(Reader *r, size_t *target, size_t *first) {
  if (!r->marks.length) return RD_ABANDON;
  *first = fence(r);
  r->marks.length--;
  if (*first <= fence(r)) return RD_ABANDON;
  *target = *first - 1;
  return RD_MORE;
}

static inline int small_int(Reader *r, uint64_t at, size_t length, int64_t number) {
  r->small_run = r->small_end == at && at ? r->small_run + 1 : 1;
  r->small_end = at + length;
  return push(r, V_INT, number);
}

static int run_opcodes(Reader *r, const uint8_t *bytes, size_t length, size_t *used) {
  /* `end` is the end of the piece, or of the pickle's frame if that comes first. */
  size_t p = 0, end = length;
  int ends_frame = 0;
  int status = RD_MORE;
  size_t target, first;
  *used = 0;
  if (r->is_framed && r->frame_left <= length) {
    end = (size_t)r->frame_left;
    ends_frame = 1;
  }
#define NEED(count)                                       \
  do {                                                    \
    if (end - p < (size_t)(count)) {                      \
      if (ends_frame) return RD_ABANDON;                  \
      goto out;                                           \
    }                                                     \
  } while (0)
  for (;;) {
    if (p == end) {
      if (!ends_frame) goto out;
      if (p == length) {
        /* What follows the frame decides. */
        goto out;
      }
      if (bytes[p] == 0x95) {
        if (length - p < 9) goto out;
        uint64_t frame = little(bytes + p + 1, 8);
        p += 9;
        if (r->small_end == r->position) r->small_end += 9; /* as if the header weren't there */
        r->position += 9;
        *used = p;
        r->frame_left = frame;
        if (frame <= length - p) {
          end = p + (size_t)frame;
        } else {
          end = length;
          ends_frame = 0;
        }
        continue;
      }
      r->is_framed = 0;
      ends_frame = 0;
      end = length;
    }
    size_t start = p;
    uint64_t at = r->position;
    switch (bytes[p]) {
      case 'j':
        NEED(5);
        status = get(r, little(bytes + p + 1, 4));
        p += 5;
        break;
      case 'h':
        NEED(2);
        status = get(r, bytes[p + 1]);
        p += 2;
        break;
      case 0x94:
        status = memoize(r);
        p++;
        break;
      case 'q':
        NEED(2);
        status = put(r, bytes[p + 1]);
        p += 2;
        break;
      case 'r':
        NEED(5);
        status = put(r, little(bytes + p + 1, 4));
        p += 5;
        break;
      case 'K':
        NEED(2);
        status = small_int(r, at, 2, bytes[p + 1]);
        p += 2;
        break;
      case 'M':
        NEED(3);
        status = small_int(r, at, 3, (int64_t)little(bytes + p + 1, 2));
        p += 3;
        break;
      case 'J':
        NEED(5);
        status = small_int(r, at, 5, (int32_t)(uint32_t)little(bytes + p + 1, 4));
        p += 5;
        break;
      case 0x8a: {
        NEED(2);
        size_t count = bytes[p + 1];
        if (count > 9) return RD_ABANDON;
        NEED(2 + count);
        if (count == 9 && bytes[p + 10]) return RD_ABANDON;
        uint64_t number = little(bytes + p + 2, count < 8 ? count : 8);
        if (count && count < 8 && bytes[p + 1 + count] & 0x80) number |= ~UINT64_C(0) << (8 * count);
        status = push(r, count == 9 && number >> 63 ? V_BIG : V_INT, (int64_t)number);
        p += 2 + count;
        break;
      }
      case 'G': {
        NEED(9);
        uint64_t bits = 0;
        for (size_t i = 1; i <= 8; i++) bits = bits << 8 | bytes[p + i];
        status = push(r, V_FLOAT, (int64_t)bits);
        p += 9;
        break;
      }
      case 0x8c: {
        NEED(2);
        size_t count = bytes[p + 1];
        NEED(2 + count);
        uint32_t number = 0;
        status = intern_string(r, bytes + p + 2, count, &number);
        if (!status) status = push(r, V_STRING, number);
        p += 2 + count;
        break;
      }
      case 'X': {
        NEED(5);
        uint64_t count = little(bytes + p + 1, 4);
        if (count > MAX_STRING_BYTES) return RD_ABANDON;
        NEED(5 + count);
        uint32_t number = 0;
        status = intern_string(r, bytes + p + 5, (size_t)count, &number);
        if (!status) status = push(r, V_STRING, number);
        p += 5 + (size_t)count;
        break;
      }
      case '(':
        PUSH(r->marks, size_t, r->stack.length);
        p++;
        break;
      case '}':
        status = push_container(r, N_DICT0);
        p++;
        break;
      case ']':
        status = push_container(r, N_LIST0);
        p++;
        break;
      case ')':
        status = push(r, V_EMPTY_TUPLE, 0);
        p++;
        break;
      case 'N':
        status = push(r, V_NONE, 0);
        p++;
        break;
      case 0x88:
        status = push(r, V_TRUE, 0);
        p++;
        break;
      case 0x89:
        status = push(r, V_FALSE, 0);
        p++;
        break;
      case 0x86: {
        /* Only a pair of small integers that stand right before it. */
        if (r->small_run < 2 || r->small_end != at || r->stack.length < fence(r) + 2) return RD_ABANDON;
        Value *parts = (Value *)r->stack.items + r->stack.length - 2;
        Pair pair = {parts[0].payload, parts[1].payload};
        uint32_t number = 0;
        status = intern_pair(r, pair, &number);
        r->stack.length -= 2;
        if (!status) status = push(r, V_PAIR, number);
        p++;
        break;
      }
      case 'e':
        status = pop_mark(r, &target, &first);
        if (!status) status = append(r, target, first);
        p++;
        break;
      case 'a':
        if (r->stack.length < fence(r) + 2) return RD_ABANDON;
        status = append(r, r->stack.length - 2, r->stack.length - 1);
        p++;
        break;
      case 'u':
        status = pop_mark(r, &target, &first);
        if (!status) status = set_items(r, target, first);
        p++;
        break;
      case 's':
        if (r->stack.length < fence(r) + 3) return RD_ABANDON;
        status = set_items(r, r->stack.length - 3, r->stack.length - 2);
        p++;
        break;
      case '.':
        if (r->stack.length != 1 || r->marks.length) return RD_ABANDON;
        if (r->is_framed && !(ends_frame && p + 1 == end)) return RD_ABANDON;
        r->root = AT(r->stack, Value, 0);
        *used = p + 1;
        r->position += 1;
        return RD_DONE;
      case 0x80:
        if (at) return RD_ABANDON;
        NEED(2);
        r->protocol = bytes[p + 1];
        if (r->protocol < 2 || r->protocol > 5) return RD_ABANDON;
        p += 2;
        break;
      case 0x95:
        /* A frame that doesn't follow another: only outside of frames, and not many. */
        if (r->is_framed || ++r->num_frames_opened > FREE_FRAMES) return RD_ABANDON;
        if (length - p < 9) {
          r->num_frames_opened--;
          goto out;
        }
        r->frame_left = little(bytes + p + 1, 8);
        r->is_framed = 1;
        p += 9;
        r->position += 9;
        *used = p;
        if (r->frame_left <= length - p) {
          end = p + (size_t)r->frame_left;
          ends_frame = 1;
        }
        continue;
      default:
        return RD_ABANDON;
    }
    if (status) return status;
    if (!at && bytes[start] != 0x80) return RD_ABANDON;
    r->position += p - start;
    if (r->is_framed) r->frame_left -= p - start;
    *used = p;
  }
out:
#undef NEED
  return RD_MORE;
}

/* ---------------------------------------------------------------------------------- the outside */

int rd_feed(Reader *reader, const uint8_t *bytes, size_t length, size_t *used) {
  *used = 0;
  if (reader->status != RD_MORE) return RD_ABANDON;
  if (length) reader->status = run_opcodes(reader, bytes, length, used);
  return reader->status;
}

Reader *rd_new(uint64_t seed) {
  Reader *r = calloc(1, sizeof(Reader));
  if (!r) return NULL;
  r->seed = seed;
  int status = RD_MORE;
  for (uint32_t key = 0; key < NUM_KEYS && !status; key++) {
    uint32_t number = 0;
    status = intern_string(r, (const uint8_t *)KEYS[key], strlen(KEYS[key]), &number);
    if (number != key) status = RD_ABANDON;
  }
  uint32_t number = 0;
  if (!status && !grow(&r->stack_frames, 1, sizeof(uint32_t))) status = RD_NO_MEMORY;
  if (!status) status = intern_stack(r, 0, &number);
  if (status || number) {
    rd_free(r);
    return NULL;
  }
  return r;
}

void rd_free_machine(Reader *r) {
  drop(&r->stack);
  drop(&r->marks);
  drop(&r->memo);
  Table *tables[] = {&r->strings_by_hash, &r->frames_by_hash, &r->stacks_by_hash, &r->pairs_by_hash};
  for (size_t i = 0; i < 4; i++) {
    free(tables[i]->slots);
    memset(tables[i], 0, sizeof(Table));
  }
}

void rd_free(Reader *r) {
  if (!r) return;
  rd_free_machine(r);
  for (size_t i = 0; i < r->lists.length; i++) free(AT(r->lists, List, i).items);
  Vec *vecs[] = {&r->nodes,      &r->text,  &r->text_ends, &r->frame_items, &r->frame_ends, &r->stack_frames,
                 &r->stack_ends, &r->pairs, &r->lists,     &r->dict_items,  &r->dicts,      &r->runs,
                 &r->extras};
  for (size_t i = 0; i < sizeof(vecs) / sizeof(*vecs); i++) drop(vecs[i]);
  void *columns[] = {r->action, r->stack_of, r->context, r->metadata, r->pool, r->category,
                     r->addr,   r->size,     r->stream,  r->time,     r->mask};
  for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++) free(columns[i]);
  free(r);
}
