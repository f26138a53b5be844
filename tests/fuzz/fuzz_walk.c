/* libFuzzer's entry: any steps through the compiled block walk, within the bounds that walk.py keeps. */
#include "walk.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 32

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (size < 4) return 0;
  int64_t sizes[ROWS] = {0}, owner[ROWS];
  uint8_t is_exact[ROWS], is_expandable[ROWS];
  memset(is_exact, 1, ROWS);
  for (int i = 0; i < ROWS; i++) {
    owner[i] = i % 3;
    is_expandable[i] = (bytes[0] >> i % 8) & 1;
  }
  Walk walk = {0};
  walk.sizes = sizes;
  walk.is_exact = is_exact;
  walk.num_rows = walk.num_ranges = ROWS;
  walk.is_expandable = is_expandable;
  walk.owner = owner;
  walk.rounds = bytes[1] & 1;
  walk.splits_small = bytes[1] & 2;
  walk.follows_segments = bytes[1] & 4;
  walk.padding = bytes[1] & 8 ? 32 : 0;
  walk.alignment = bytes[1] & 16 ? 16 << 10 : 512;
  walk.max_split = bytes[1] & 32 ? 20 << 20 : (int64_t)1 << 62;
  for (int i = 0; i < 16; i++) walk.divisions[i] = bytes[2] % 16;
  walk.search_budget = bytes[3];
  size_t length = (size - 4) / 5;
  for (size_t i = 0; i < length; i++) {
    const uint8_t *step = bytes + 4 + 5 * i;
    int8_t kind = step[0] & 3;
    int64_t row = (step[0] >> 2) % (ROWS + 1);
    int64_t addr = (int64_t)step[1] << 9 | (int64_t)step[2] << 20 | (int64_t)(step[3] & 3) << 58;
    int64_t bytes_of = (int64_t)(step[3] >> 2) << 18 | (int64_t)step[4] << 8;
    wk_run(&walk, &kind, &row, &addr, &bytes_of, 1);
  }
  wk_free(&walk);
  return 0;
}
