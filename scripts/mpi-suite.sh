#!/usr/bin/env bash
# Runs the transports' suite over MPI: five processes here, in worlds of 1, 2, 3 and 5 ranks. Arguments are passed on:
# names of facts, or parts of them. RANKS, TIMEOUT (seconds) and MPIRUN may be set; MPICH's mpirun wants
# MPIRUN="mpirun".
set -euo pipefail
cd "$(dirname "$0")/../crates/briquette-mpi"
cargo build --example suite --locked
target=$(cargo metadata --format-version 1 --no-deps --locked | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
mpirun=${MPIRUN:-mpirun --oversubscribe}
if [ "$(id -u)" -eq 0 ] && [ -z "${MPIRUN:-}" ]; then
    mpirun="$mpirun --allow-run-as-root"
fi
# shellcheck disable=SC2086 # the launcher's own options
exec timeout --kill-after=10 "${TIMEOUT:-300}" $mpirun -n "${RANKS:-5}" "$target/debug/examples/suite" "$@"
