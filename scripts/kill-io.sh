#!/usr/bin/env bash
# Kills a trainer before and after every system call on its files, and lets each of them return ENOSPC and EIO, while it begins,
# resumes and overwrites a run, with ranks that are threads and ranks that are processes.
#
#   scripts/kill-io.sh [PART OF A NAME] [FLAG...]      scripts/kill-io.sh
#                                                      scripts/kill-io.sh begin-threads --every 5
#
# Whatever happened, the run must come to its end without repair: by itself (processes are started again), with --resume, or by
# beginning it again where it had saved nothing. Its metrics, summary and last checkpoint must be those of a run that was left
# alone, and nothing may be left over. Of a run that is overwritten, either the old one is whole or the new one has begun.
#
# Prints a table as CSV: scenario x harm, calls, how runs came to their ends. Exits 1 if anything was found, which is said on
# stderr; 77 where processes cannot be traced, or not on Linux on x86-64.
set -euo pipefail
cd "$(dirname "$0")/.."
# As the tests are built, so that one build of Burn serves both.
cargo test --workspace --no-run --locked --test chaos --test all
exec nice -n 10 "${CARGO_TARGET_DIR:-target}/debug/kill-io" "$@"
