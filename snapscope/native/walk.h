/* The block walk of snapscope.replay.walk, whose Python code is the reference that this equals step by step. */
#ifndef SNAPSCOPE_WALK_H
#define SNAPSCOPE_WALK_H

#include <stddef.h>
#include <stdint.h>

enum { WK_OK = 0, WK_NO_MEMORY = 1, WK_OUT_OF_RANGE = 2 };

/* A map of integers that is walked in the order of insertion, as Python's dict. */
typedef struct {
  int64_t *keys, *values;
  uint8_t *live;
  size_t length, room, used; /* entries, of which `used` are live */
  uint32_t *slots;           /* entry + 1; 0 is free */
  size_t num_slots;
} Map;

typedef struct {
  Map end_of, start_of, borders, owner_below, owner_above, elder_by_end;
  /* one row an allocation */
  int64_t *sizes;
  uint8_t *is_exact;
  size_t num_rows;
  /* one row a reserved range */
  const uint8_t *is_expandable;
  const int64_t *owner; /* a number for its stream and size class */
  size_t num_ranges;
  /* the rules */
  int rounds, splits_small, follows_segments;
  int64_t padding, alignment, max_split, divisions[16];
  /* the outcome */
  int64_t search_budget, num_odd, odd_bytes;
} Walk;

void wk_free(Walk *walk);
int map_set(Map *map, int64_t key, int64_t value);

/* Take the steps in order: operation, row of an allocation or a range, address, requested or reserved bytes. */
int wk_run(Walk *walk, const int8_t *kind, const int64_t *row, const int64_t *addr, const int64_t *size, size_t length);

#endif
