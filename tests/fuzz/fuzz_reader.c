/* libFuzzer's entry: any bytes, in pieces of any length, through the core of the compiled reader.
 *
 * AddressSanitizer and UndefinedBehaviorSanitizer watch the memory; this checks what the Cython side relies
 * on: every number in what was read is one that exists, and memory stays in proportion to the input.
 */
#include "reader.h"

#include <stdlib.h>

#define CHECK(truth)               \
  do {                             \
    if (!(truth)) __builtin_trap(); \
  } while (0)
#define MAX_BYTES_PER_BYTE 100
#define FREE_BYTES (1 << 16)

static void check_value(const Reader *r, Value value) {
  switch (value.tag) {
    case V_STRING:
      CHECK((uint64_t)value.payload < r->text_ends.length);
      break;
    case V_PAIR:
      CHECK((uint64_t)value.payload < r->pairs.length);
      break;
    case V_NODE:
      CHECK((uint64_t)value.payload < r->nodes.length);
      break;
    default:
      CHECK(value.tag <= V_BIG);
  }
}

static void check_ends(const Vec *ends, size_t length) {
  uint64_t last = 0;
  for (size_t i = 0; i < ends->length; i++) {
    uint64_t end = ((uint64_t *)ends->items)[i];
    CHECK(end >= last && end <= length);
    last = end;
  }
  CHECK(last == length);
}

static void check_result(const Reader *r) {
  check_value(r, r->root);
  check_ends(&r->text_ends, r->text.length);
  check_ends(&r->frame_ends, r->frame_items.length);
  for (size_t i = 0; i < r->nodes.length; i++) {
    uint64_t node = ((uint64_t *)r->nodes.items)[i], content = node & ((UINT64_C(1) << 56) - 1);
    switch (node >> 56) {
      case N_LIST: {
        CHECK(content < r->lists.length);
        List list = ((List *)r->lists.items)[content];
        for (size_t j = 0; j < list.length; j++) check_value(r, list.items[j]);
        break;
      }
      case N_DICT: {
        CHECK(content < r->dicts.length);
        Span span = ((Span *)r->dicts.items)[content];
        CHECK(span.first + span.length <= r->dict_items.length);
        for (size_t j = 0; j < span.length; j++) {
          Value item = ((Value *)r->dict_items.items)[span.first + j];
          CHECK(item.key < r->text_ends.length);
          check_value(r, item);
        }
        break;
      }
      case N_FRAME: {
        CHECK(content < r->frame_ends.length);
        uint64_t first = content ? ((uint64_t *)r->frame_ends.items)[content - 1] : 0;
        for (uint64_t j = first; j < ((uint64_t *)r->frame_ends.items)[content]; j++) {
          Value item = ((Value *)r->frame_items.items)[j];
          CHECK(item.key < r->text_ends.length && item.tag != V_NODE);
          check_value(r, item);
        }
        break;
      }
      case N_STACK:
        CHECK(content < r->stack_ends.length);
        break;
      case N_EVENT:
      case N_USED:
        CHECK(content < r->num_events);
        break;
      case N_EVENTS: {
        CHECK(content < r->runs.length);
        Span run = ((Span *)r->runs.items)[content];
        CHECK(run.length && run.first + run.length <= r->num_events);
        break;
      }
      case N_STRING:
        CHECK(content < r->text_ends.length);
        break;
      case N_PAIR:
        CHECK(content < r->pairs.length);
        break;
      default:
        CHECK(node >> 56 <= N_EMPTY_TUPLE);
    }
  }
  uint64_t last = 0;
  for (size_t i = 0; i < r->stack_ends.length; i++) {
    uint64_t end = ((uint64_t *)r->stack_ends.items)[i];
    CHECK(end >= last && end <= r->stack_frames.length);
    for (uint64_t j = last; j < end; j++) CHECK(((uint32_t *)r->stack_frames.items)[j] < r->frame_ends.length);
    last = end;
  }
  for (size_t i = 0; i < r->extras.length; i++) {
    Extra extra = ((Extra *)r->extras.items)[i];
    CHECK(extra.row < r->num_events && extra.key < r->text_ends.length);
    if (extra.key == K_FORWARD) CHECK((uint64_t)extra.value < r->nodes.length);
  }
  for (size_t i = 0; i < r->num_events; i++) {
    CHECK(r->action[i] >= 0 && (size_t)r->action[i] < r->text_ends.length);
    CHECK(r->context[i] >= -1 && r->context[i] < (int64_t)r->text_ends.length);
    CHECK(r->metadata[i] >= -1 && r->metadata[i] < (int64_t)r->text_ends.length);
    CHECK(r->category[i] >= -1 && r->category[i] < (int64_t)r->text_ends.length);
    CHECK(r->pool[i] >= -1 && r->pool[i] < (int64_t)r->pairs.length);
    CHECK(r->stack_of[i] >= -1 && r->stack_of[i] < (int64_t)r->stack_ends.length);
    CHECK(r->addr[i] >= 0);
  }
}

static void check_memory(const Reader *r, size_t size) {
  size_t bytes = r->stack.room * sizeof(Value) + r->marks.room * 8 + r->memo.room * 4 + r->nodes.room * 8 + r->text.room +
                 r->text_ends.room * 8 + r->frame_items.room * sizeof(Value) + r->frame_ends.room * 8 +
                 r->stack_frames.room * 4 + r->stack_ends.room * 8 + r->pairs.room * sizeof(Pair) +
                 r->lists.room * sizeof(List) + r->dict_items.room * sizeof(Value) + r->dicts.room * sizeof(Span) +
                 r->runs.room * sizeof(Span) + r->extras.room * sizeof(Extra) + r->events_room * 60 +
                 (r->strings_by_hash.size + r->frames_by_hash.size + r->stacks_by_hash.size + r->pairs_by_hash.size) * 4;
  for (size_t i = 0; i < r->lists.length; i++) bytes += ((List *)r->lists.items)[i].room * sizeof(Value);
  CHECK(bytes < FREE_BYTES * 4 + MAX_BYTES_PER_BYTE * size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (!size) return 0;
  /* The first byte says how long the pieces are. */
  size_t step = bytes[0] ? bytes[0] : size, start = 0, end = 0, used;
  bytes++;
  size--;
  Reader *reader = rd_new(UINT64_C(0x123456789ABCDEF));
  if (!reader) return 0;
  int status = RD_MORE;
  while (status == RD_MORE && end < size) {
    end = size - end < step ? size : end + step;
    /* A copy of its own, so that reading beyond it shows. */
    uint8_t *piece = malloc(end - start);
    for (size_t i = start; i < end; i++) piece[i - start] = bytes[i];
    status = rd_feed(reader, piece, end - start, &used);
    free(piece);
    CHECK(used <= end - start);
    start += used;
  }
  check_memory(reader, size);
  if (status == RD_DONE) {
    CHECK(reader->position == start);
    rd_free_machine(reader);
    check_result(reader);
  }
  rd_free(reader);
  return 0;
}
