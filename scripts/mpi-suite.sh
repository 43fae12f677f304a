#!/usr/bin/env bash
# Holds crates/briquette-mpi to the transports' suite, with five processes here in worlds of 1, 2, 3 and 5 ranks, and
# sees how jobs end. Arguments are names of facts, or parts of them: then only those are run.
#
# RANKS, TIMEOUT (seconds, for each job) and MPIRUN (the launcher and its options, without the number of processes) may
# be set. For another MPI than the first in the path: MPICC=mpicc.mpich MPIRUN=mpirun.mpich, and a CARGO_TARGET_DIR of
# its own.
set -euo pipefail
cd "$(dirname "$0")/../crates/briquette-mpi"
mpirun=${MPIRUN:-mpirun --oversubscribe}
missing=
for program in "${MPICC:-mpicc}" "${mpirun%% *}"; do
    command -v "$program" >/dev/null || missing+=" $program"
done
echo '#include <mpi.h>' | "${MPICC:-mpicc}" -E -x c - >/dev/null 2>&1 || missing+=" mpi.h"
if [ -n "$missing" ]; then
    echo "there is no MPI here; missing:$missing. scripts/mpi.sh installs one" >&2
    exit 1
fi
cargo build --examples --locked
target=$(cargo metadata --format-version 1 --no-deps --locked | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
if [ "$(id -u)" -eq 0 ] && [ -z "${MPIRUN:-}" ]; then
    mpirun="$mpirun --allow-run-as-root"
fi

# job SECONDS EXAMPLE ARGUMENTS…
job() {
    local seconds=$1 example=$2
    shift 2
    # shellcheck disable=SC2086 # the launcher's own options
    timeout --kill-after=10 "$seconds" $mpirun -n "${RANKS:-5}" "$target/debug/examples/$example" "$@"
}

job "${TIMEOUT:-300}" suite "$@"
[ $# -eq 0 ] || exit 0

# ends well|badly WAY [WORDS]: the job ends by itself, in time, as it should, and says so in these words.
ends() {
    local how=$1 way=$2 words=${3-} output status=0 ended=well
    output=$(job 60 ends "$way" 2>&1) || status=$?
    [ "$status" -eq 0 ] || ended=badly
    # The status of `timeout` itself, or of the signal that it sent.
    case "$status" in 124 | 137) ended="not in time" ;; esac
    if [ "$ended" != "$how" ] || ! grep -qF -- "$words" <<<"$output"; then
        printf "a job that ends by '%s' ends %s (%s), with:\n%s\n" "$way" "$ended" "$status" "$output" >&2
        exit 1
    fi
    echo "a job that ends by '$way' ... ends $how"
}
last=$((${RANKS:-5} - 1))
ends well well
ends well late
ends well threads
ends well long
ends badly error "rank $last stopped the run during idle at step 5: no disk"
ends badly panic "rank $last stopped the run during idle at step 5: panicked"
ends badly stuck "not every rank has left since"
ends badly exit
