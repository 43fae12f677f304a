#!/usr/bin/env bash
# Disturbs runs of processes over TCP and TLS at random, for hours, and asserts that each ends with the bits of one that was
# left alone.
#
#   scripts/soak.sh HOURS [SEED] [FLAG...]         scripts/soak.sh 2
#                                                  scripts/soak.sh 0.1 7 --keep-going --out /tmp/soak
#                                                  scripts/soak.sh 0 --episode 7013        (one episode again, by its seed)
#
# Kills (a rank, all, the launcher), stops and resumes, pauses, resets, slow, long, frozen and half-open links, flipped bits, full
# disks, jumps of the wall clock, damaged files, strangers at the port, directories that look like checkpoints. Each episode
# compares metrics, summary and the tensors of the last checkpoint with those of an undisturbed run, and looks at memory,
# descriptors, processes, sockets and files that are left over. The monotonic clock, by which deadlines are kept, cannot jump.
#
# One line per event on stdout and in OUT/soak.csv (`soak` here, if --out is not given). Ends after the episode in which the time is
# over, at the first finding (without --keep-going), or at Ctrl-C; exits 1 if anything was found. The directory of an episode with a
# finding is kept.
#
# For Linux. Full disks need the right to mount, jumps of the clock a C compiler; without them the others remain.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$(dirname "$0")/.."
# As the tests are built, so that one build of Burn serves both.
cargo test --workspace --no-run --locked --test chaos --test all
built=${CARGO_TARGET_DIR:-target}/debug
# A copy, so that a build meanwhile does not change what is tested.
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
cp "$built"/{briquette,cifar,ag-news,soak} "$programs"
revision=$(git describe --always --dirty 2> /dev/null || echo unknown)
# Ctrl-C is for the program, which ends its runs and says what it did.
trap '' INT
nice -n 10 "$programs/soak" "$@" --revision "$revision"
