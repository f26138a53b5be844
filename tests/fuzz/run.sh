#!/usr/bin/env bash
# Fuzz the compiled reader and the block walk: tests/fuzz/run.sh [SECONDS each] [FOLDER for what was found].
# Needs clang with libFuzzer. Ends with an error if anything was found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
seconds=${1:-600}
folder=${2:-$(mktemp -d)}
native=../../snapscope/native
flags=(-g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I "$native")
mkdir -p "$folder/reader" "$folder/walk"
clang "${flags[@]}" fuzz_reader.c "$native/reader.c" -o "$folder/fuzz_reader"
clang "${flags[@]}" fuzz_walk.c "$native/walk.c" -o "$folder/fuzz_walk"
"${PYTHON:-python3}" seeds.py "$folder/reader"
common=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0)
"$folder/fuzz_reader" "${common[@]}" -max_len=8192 -dict=opcodes.dict -artifact_prefix="$folder/reader-" "$folder/reader"
"$folder/fuzz_walk" "${common[@]}" -max_len=2048 -artifact_prefix="$folder/walk-" "$folder/walk"
