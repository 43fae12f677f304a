#!/usr/bin/env bash
# Runs a trainer on two machines that are not there: network namespaces of this machine, joined by a link of the given rate.
# Needs root, `ip` and `tc` (Debian: iproute2). Says at the end how many bytes crossed the link, each way.
#
#   scripts/two-machines.sh RATE PROGRAM [FLAG...]        scripts/two-machines.sh 100mbit target/release/ag-news --steps 50
#
# RATE is a bandwidth, or trace:FILE as of --network (benches/traces.py writes some): the bandwidth follows the file in wall seconds
# from the start of the programs on, and the file starts over at its end. Its latencies are not applied, and 0 takes the link down.
# `briquette` (the launcher) is looked for beside PROGRAM, or is what LAUNCHER names. A machine has one rank, or RANKS_PER_MACHINE.
# The first machine runs on core 0, the second one on core 1 where there is one. CORES_PER_RANK=2 gives each as many of its own,
# where there are twice as many: one to compute on and one to exchange on meanwhile (RAYON_NUM_THREADS=1 keeps computing on one).
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
rate=$1 program=$2
shift 2
launcher=${LAUNCHER:-$(dirname "$program")/briquette}
[ -x "$launcher" ] || { echo "error: no $launcher: cargo build --release builds it"; exit 1; }
each=${CORES_PER_RANK:-1} ranks=${RANKS_PER_MACHINE:-1}
for tool in ip tc taskset; do
    command -v $tool > /dev/null || { echo "skipped: $tool is missing (Debian: apt-get install iproute2 util-linux)"; exit 77; }
done

a=briquette-a-$$ b=briquette-b-$$
work=$(mktemp -d)
follower=
cleanup() {
    if [ -n "$follower" ]; then
        kill "$follower" 2> /dev/null || true
        wait "$follower" 2> /dev/null || true
    fi
    ip netns del $a 2> /dev/null || true
    ip netns del $b 2> /dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
# or_skip COMMAND...: what needs rights and parts of the system that not every machine has.
or_skip() {
    "$@" 2> "$work/error" || { echo "skipped: this machine cannot: $* ($(cat "$work/error"))"; exit 77; }
}
or_skip ip netns add $a
or_skip ip netns add $b
or_skip ip link add v0 netns $a type veth peer name v1 netns $b
ip -n $a addr add 10.77.0.1/24 dev v0
ip -n $b addr add 10.77.0.2/24 dev v1
for end in "$a v0" "$b v1"; do
    read -r space device <<< "$end"
    ip -n "$space" link set lo up
    ip -n "$space" link set "$device" up
done
# shape RATE: of both ends, from now on.
shape() {
    # A bucket so small that short messages take their time too; gigabits are reached from 256 kB on, and a megabyte would let the
    # gradients of a ResNet-20 pass at once. And a queue that drops nothing.
    local burst=32kbit state=up
    case $1 in *gbit | [0-9][0-9][0-9][0-9]*mbit) burst=256kb ;; 0mbit | 0.0mbit) state=down ;; esac
    for end in "$a v0" "$b v1"; do
        read -r space device <<< "$end"
        ip -n "$space" link set "$device" $state
        [ $state = down ] || tc -n "$space" qdisc replace dev "$device" root tbf rate "$1" burst $burst latency 400ms || return 1
    done
}
# follow FILE: shapes both ends as the trace says, until it is ended.
follow() {
    # A command that is running ends first: it may use the devices.
    trap exit TERM
    local begin=$EPOCHREALTIME due=0 length left never second mbit
    exec {never}<> <(:)
    while :; do
        while IFS=, read -r second mbit _; do
            length=$second
            left=$(awk -v now="$EPOCHREALTIME" -v begin="$begin" -v at="$due" -v second="$second" \
                'BEGIN { left = begin + at + second - now; print (left > 0 ? left : 0) }')
            # Waits as sleep does, without a process that would outlive this one.
            read -rt "$left" -u "$never" || true
            [ -z "$mbit" ] || shape "${mbit}mbit"
        done < <(grep -v '^#' "$1" | tail -n +2)
        due=$(awk -v due="$due" -v round="$length" 'BEGIN { print due + round }')
        echo "two-machines.sh: the trace starts over" >&2
    done
}
case $rate in
    trace:*)
        trace=${rate#trace:}
        grep -v '^#' "$trace" | head -1 | grep -qx 'seconds,mbit,ms' \
            || { echo "error: $trace has not the columns seconds,mbit,ms (a path between two machines has no name)"; exit 2; }
        or_skip shape "$(grep -v '^#' "$trace" | sed -n 2p | cut -d, -f2)mbit"
        ;;
    *) or_skip shape "$rate" ;;
esac

(umask 077; "$launcher" token > "$work/token")
# nproc would obey this variable, which programs are given.
cores=$(env -u OMP_NUM_THREADS nproc)
if [ "$each" -gt 1 ] && [ $((2 * each)) -gt "$cores" ]; then
    echo "error: CORES_PER_RANK=$each: two ranks want $((2 * each)) cores, and there are $cores"
    exit 2
fi
start() {
    local first=$(($2 * each % cores))
    ip netns exec "$1" taskset -c $first-$((first + each - 1)) "$launcher" launch --nodes 10.77.0.1,10.77.0.2 --node-rank "$2" --ranks "$ranks" \
        --port 29500 --token-file "$work/token" -- "$program" "${@:3}"
}
case $rate in trace:*)
    follow "${rate#trace:}" &
    follower=$!
    ;;
esac
start $b 1 "$@" &
other=$!
status=0
start $a 0 "$@" || status=$?
wait $other || status=$?
sent() { ip netns exec "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }
echo "between the machines: $(sent $a v0) bytes there, $(sent $b v1) bytes back" >&2
exit $status
