#include "walk.h"

#include <stdlib.h>
#include <string.h>

enum { CLOSE, UNRESERVE, RESERVE, OPEN };

#define MIN_BLOCK_BYTES 512
#define SMALL_REQUEST_BYTES (1 << 20)
#define TRY(step)                \
  do {                           \
    int status_ = (step);        \
    if (status_) return status_; \
  } while (0)

/* ---------------------------------------------------------------------------------------- maps */

static size_t slot_of(const Map *map, int64_t key) {
  uint64_t hash = (uint64_t)key * UINT64_C(0x9E3779B97F4A7C15);
  return (size_t)(hash ^ (hash >> 32)) & (map->num_slots - 1);
}

/* Return the slot of the key, or the free one where its search ends; the map has slots. */
static size_t find_slot(const Map *map, int64_t key) {
  size_t place = slot_of(map, key);
  while (map->slots[place] && map->keys[map->slots[place] - 1] != key) place = (place + 1) & (map->num_slots - 1);
  return place;
}

/* Make room for one more entry; entries that are gone make way first. */
static int map_reserve(Map *map) {
  if (map->length < map->room) return WK_OK;
  size_t room = map->used * 2 < 64 ? 64 : map->used * 2;
  if (room > UINT32_MAX / 4) return WK_NO_MEMORY;
  size_t num_slots = 128;
  while (num_slots < room * 2) num_slots *= 2;
  int64_t *keys = malloc(room * sizeof(int64_t)), *values = malloc(room * sizeof(int64_t));
  uint8_t *live = malloc(room);
  uint32_t *slots = calloc(num_slots, sizeof(uint32_t));
  if (!keys || !values || !live || !slots) {
    free(keys);
    free(values);
    free(live);
    free(slots);
    return WK_NO_MEMORY;
  }
  Map fresh = {keys, values, live, 0, room, map->used, slots, num_slots};
  for (size_t i = 0; i < map->length; i++) {
    if (!map->live[i]) continue;
    keys[fresh.length] = map->keys[i];
    values[fresh.length] = map->values[i];
    live[fresh.length] = 1;
    slots[find_slot(&fresh, map->keys[i])] = (uint32_t)++fresh.length;
  }
  free(map->keys);
  free(map->values);
  free(map->live);
  free(map->slots);
  *map = fresh;
  return WK_OK;
}

static int map_get(const Map *map, int64_t key, int64_t *value) {
  if (!map->num_slots) return 0;
  uint32_t entry = map->slots[find_slot(map, key)];
  if (!entry || !map->live[entry - 1]) return 0;
  *value = map->values[entry - 1];
  return 1;
}

/* A key that was taken off and comes again gets a new place in the order; its slot finds the latest. */
int map_set(Map *map, int64_t key, int64_t value) {
  TRY(map_reserve(map));
  size_t place = find_slot(map, key);
  uint32_t entry = map->slots[place];
  if (entry && map->live[entry - 1]) {
    map->values[entry - 1] = value;
    return WK_OK;
  }
  map->keys[map->length] = key;
  map->values[map->length] = value;
  map->live[map->length] = 1;
  map->slots[place] = (uint32_t)++map->length;
  map->used++;
  return WK_OK;
}

static int map_pop(Map *map, int64_t key, int64_t *value) {
  if (!map->num_slots) return 0;
  uint32_t entry = map->slots[find_slot(map, key)];
  if (!entry || !map->live[entry - 1]) return 0;
  map->live[entry - 1] = 0;
  map->used--;
  *value = map->values[entry - 1];
  return 1;
}

static int has(const Map *map, int64_t key) {
  int64_t value;
  return map_get(map, key, &value);
}

static void map_discard(Map *map, int64_t key) {
  int64_t value;
  map_pop(map, key, &value);
}

static void map_free(Map *map) {
  free(map->keys);
  free(map->values);
  free(map->live);
  free(map->slots);
  memset(map, 0, sizeof(Map));
}

/* --------------------------------------------------------------------------------------- rules */

static int bit_length(int64_t number) {
  int length = 0;
  while (number) {
    length++;
    number >>= 1;
  }
  return length;
}

static int64_t round_up(const Walk *walk, int64_t bytes) {
  if (!walk->rounds) return bytes;
  bytes += walk->padding;
  if (bytes < MIN_BLOCK_BYTES) return MIN_BLOCK_BYTES;
  int length = bit_length(bytes);
  int interval = length - 21 < 0 ? 0 : length - 21 > 15 ? 15 : length - 21;
  int64_t divisions = walk->divisions[interval];
  if (divisions > 1 && bytes > MIN_BLOCK_BYTES * divisions) {
    int64_t power = (int64_t)1 << (length - 1);
    if (power == bytes) return bytes;
    int64_t step = power / divisions;
    return step ? (bytes + step - 1) / step * step : power * 2;
  }
  return (bytes + MIN_BLOCK_BYTES - 1) / MIN_BLOCK_BYTES * MIN_BLOCK_BYTES;
}

static int splits(const Walk *walk, int64_t rounded, int64_t rest) {
  if (rounded <= SMALL_REQUEST_BYTES || walk->splits_small) return 1;
  return rounded < walk->max_split && rest > SMALL_REQUEST_BYTES;
}

/* ---------------------------------------------------------------------------------------- steps */

static int add_free(Walk *walk, int64_t start, int64_t end) {
  TRY(map_set(&walk->end_of, start, end));
  return map_set(&walk->start_of, end, start);
}

static int find_free(Walk *walk, int64_t start, int64_t end, int64_t *low, int64_t *high) {
  int64_t known;
  if (map_get(&walk->end_of, start, &known) && known >= end) {
    *low = start;
    *high = known;
    return 1;
  }
  if (walk->search_budget <= 0) return 0;
  walk->search_budget -= (int64_t)walk->end_of.used;
  const Map *map = &walk->end_of;
  for (size_t i = 0; i < map->length; i++) {
    if (map->live[i] && map->keys[i] <= start && end <= map->values[i]) {
      *low = map->keys[i];
      *high = map->values[i];
      return 1;
    }
  }
  return 0;
}

static int open_oddly(Walk *walk, int64_t row, int64_t addr, int64_t rounded) {
  int64_t start = 0, stop = 0, elder, ignored;
  int has_home = find_free(walk, addr, addr + rounded, &start, &stop);
  int is_aligned_up = has_home && addr - start < walk->alignment && addr % walk->alignment == 0;
  if (!is_aligned_up) {
    walk->is_exact[row] = 0;
    walk->num_odd++;
    walk->odd_bytes += rounded;
  }
  if (!has_home) {
    walk->sizes[row] = -rounded;
    return WK_OK;
  }
  if (map_get(&walk->elder_by_end, start, &elder) && addr - start <= SMALL_REQUEST_BYTES && walk->sizes[elder] > 0) {
    walk->sizes[elder] += addr - start;
    walk->is_exact[elder] = 1;
    if (!is_aligned_up) {
      walk->is_exact[row] = 1;
      walk->num_odd--;
      walk->odd_bytes -= rounded;
    }
    map_pop(&walk->end_of, start, &ignored);
  } else if (start < addr) {
    TRY(add_free(walk, start, addr));
  }
  map_pop(&walk->start_of, stop, &ignored);
  int64_t rest = stop - addr - rounded;
  if (rest >= MIN_BLOCK_BYTES && splits(walk, rounded, rest)) {
    TRY(add_free(walk, addr + rounded, stop));
    rest = 0;
  }
  walk->sizes[row] = rounded + rest;
  return WK_OK;
}

static int open_block(Walk *walk, int64_t row, int64_t addr, int64_t bytes) {
  int64_t rounded = round_up(walk, bytes), end = 0, ignored;
  int was_there = map_pop(&walk->end_of, addr, &end);
  int64_t rest = end - addr - rounded;
  if (!was_there || !end || rest < 0) {
    if (was_there && end) TRY(map_set(&walk->end_of, addr, end));
    return open_oddly(walk, row, addr, rounded);
  }
  if (rest >= MIN_BLOCK_BYTES && splits(walk, rounded, rest)) {
    TRY(add_free(walk, addr + rounded, end));
    walk->sizes[row] = rounded;
  } else {
    map_pop(&walk->start_of, end, &ignored);
    walk->sizes[row] = rounded + rest;
  }
  return WK_OK;
}

static int close_block(Walk *walk, int64_t row, int64_t addr) {
  int64_t size = walk->sizes[row], other;
  if (size < 0) {
    walk->sizes[row] = -size;
    return WK_OK;
  }
  int64_t end = addr + size;
  if (!has(&walk->borders, end) && map_pop(&walk->end_of, end, &other) && other) end = other;
  if (!has(&walk->borders, addr) && map_pop(&walk->start_of, addr, &other) && other >= 0) addr = other;
  return add_free(walk, addr, end);
}

static int reserve(Walk *walk, int64_t row, int64_t start, int64_t end) {
  int64_t other;
  if (walk->follows_segments) walk->splits_small = walk->is_expandable[row];
  if (!walk->is_expandable[row]) {
    TRY(map_set(&walk->borders, start, 1));
  } else {
    int64_t owner = walk->owner[row];
    if (!map_get(&walk->owner_below, start, &other) || other != owner) TRY(map_set(&walk->borders, start, 1));
    if (map_get(&walk->owner_above, end, &other) && other == owner) map_discard(&walk->borders, end);
    TRY(map_set(&walk->owner_below, end, owner));
    TRY(map_set(&walk->owner_above, start, owner));
  }
  if (!has(&walk->borders, end) && map_pop(&walk->end_of, end, &other)) end = other;
  if (!has(&walk->borders, start) && map_pop(&walk->start_of, start, &other)) start = other;
  return add_free(walk, start, end);
}

static int unreserve(Walk *walk, int64_t start, int64_t end) {
  int64_t low, high, owner;
  if (!find_free(walk, start, end, &low, &high)) {
    walk->num_odd++;
    walk->odd_bytes += end - start;
    return WK_OK;
  }
  map_discard(&walk->end_of, low);
  map_discard(&walk->start_of, high);
  if (low < start) TRY(add_free(walk, low, start));
  if (end < high) TRY(add_free(walk, end, high));
  if (map_pop(&walk->owner_above, start, &owner) || map_get(&walk->owner_below, end, &owner)) {
    TRY(map_set(&walk->owner_below, start, owner));
    TRY(map_set(&walk->owner_above, end, owner));
  }
  map_discard(&walk->borders, start);
  return WK_OK;
}

int wk_run(Walk *walk, const int8_t *kind, const int64_t *row, const int64_t *addr, const int64_t *size, size_t length) {
  for (size_t i = 0; i < length; i++) {
    int is_block = kind[i] == OPEN || kind[i] == CLOSE;
    if (row[i] < 0 || (size_t)row[i] >= (is_block ? walk->num_rows : walk->num_ranges)) return WK_OUT_OF_RANGE;
    switch (kind[i]) {
      case OPEN:
        TRY(open_block(walk, row[i], addr[i], size[i]));
        break;
      case CLOSE:
        TRY(close_block(walk, row[i], addr[i]));
        break;
      case RESERVE:
        TRY(reserve(walk, row[i], addr[i], addr[i] + size[i]));
        break;
      default:
        TRY(unreserve(walk, addr[i], addr[i] + size[i]));
    }
  }
  return WK_OK;
}

void wk_free(Walk *walk) {
  map_free(&walk->end_of);
  map_free(&walk->start_of);
  map_free(&walk->borders);
  map_free(&walk->owner_below);
  map_free(&walk->owner_above);
  map_free(&walk->elder_by_end);
}
