#!/usr/bin/env bash
# Starts two jobs under `mpirun` at the same time on this machine, again and again, and sees that no rank of one ends up in the
# other. Needs an MPI (scripts/mpi.sh installs Open MPI; MPICH's mpirun works too: MPIRUN=mpirun.mpich).
#
#     scripts/mpi-twice.sh [ROUNDS]        8 rounds unless said; exit code 77 where there is no mpirun
#
# The program is an example of briquette-tcp, which this builds, or what MEET names.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-8}
mpirun=${MPIRUN:-mpirun}
command -v "${mpirun%% *}" > /dev/null || { echo "skipped: there is no ${mpirun%% *} here (scripts/mpi.sh installs one)"; exit 77; }
if "${mpirun%% *}" --version 2>&1 | grep -qi 'open mpi\|open-mpi\|prrte'; then
    mpirun+=" --oversubscribe"
    [ "$(id -u)" -ne 0 ] || mpirun+=" --allow-run-as-root"
fi
if [ -z "${MEET:-}" ]; then
    cargo build --quiet --locked -p briquette-tcp --example meet
    MEET=${CARGO_TARGET_DIR:-target}/debug/examples/meet
fi
MEET=$(realpath "$MEET")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "mpi-twice.sh: $*" >&2; tail -n 20 "$work"/[abc] >&2; exit 1; }

# job NAME RANKS: in the background, with what is in the environment; its output is in $work/NAME.
job() {
    # Open MPI makes a folder for each user, and fails where two jobs make it at the same moment.
    mkdir -p "$work/tmp-$1"
    # shellcheck disable=SC2086 # the launcher's own options
    TMPDIR=$work/tmp-$1 timeout --kill-after=5 60 $mpirun -n "$2" "$MEET" "$1" > "$work/$1" 2>&1 &
}
# met NAME RANKS: that every rank of the job met its own kind.
met() {
    [ "$(grep -c "^$1: rank . of $2" "$work/$1")" -eq "$2" ] || fail "job $1: not every rank of $2 says whom it met"
    ! grep -q 'met ranks of another job' "$work/$1" || fail "job $1 met ranks of another one"
}

for round in $(seq "$rounds"); do
    job a 2
    one=$!
    job b 2
    two=$!
    job c 3
    three=$!
    for process in $one $two $three; do wait "$process" || fail "round $round: a job failed"; done
    met a 2
    met b 2
    met c 3
done
echo "$rounds rounds of three jobs at once: every rank met its own job"

# Ports of one narrow range: the first ones collide.
first=$((28000 + RANDOM % 4000))
export BRIQUETTE_PORTS=$first-$((first + 7))
for round in 1 2 3; do
    job a 2
    one=$!
    job b 2
    two=$!
    for process in $one $two; do wait "$process" || fail "round $round in the ports $BRIQUETTE_PORTS: a job failed"; done
    met a 2
    met b 2
done
echo "two jobs in the ports $BRIQUETTE_PORTS: every rank met its own job"
unset BRIQUETTE_PORTS

# One port for both, as where it is set for every job: the job that comes second fails, and the first is whole or fails, too;
# no rank meets one of the other job.
MASTER_ADDR=127.0.0.1 MASTER_PORT=$((first + 8)) BRIQUETTE_JOIN_DEADLINE=10s
export MASTER_ADDR MASTER_PORT BRIQUETTE_JOIN_DEADLINE
# Alone, it comes together.
job c 3
wait $! || fail "one job alone on port $MASTER_PORT failed"
met c 3
job a 3
one=$!
job b 3
two=$!
failed=()
wait $one || failed+=(a)
wait $two || failed+=(b)
for name in a b; do
    [[ " ${failed[*]} " == *" $name "* ]] || met $name 3
done
! grep -q 'met ranks of another job' "$work/a" "$work/b" || fail "two jobs on port $MASTER_PORT exchanged ranks"
case ${#failed[@]} in
    0) ;;
    1) grep -qE 'belongs to another job|Another program has this port' "$work/${failed[0]}" || fail "job ${failed[0]} does not say that the port is another's" ;;
    *) grep -qE 'belongs to another job|Another program has this port' "$work/a" "$work/b" || fail "two jobs on port $MASTER_PORT failed, and not because of each other" ;;
esac
echo "two jobs on one port: ${#failed[@]} of 2 failed, and no rank met the other job"
