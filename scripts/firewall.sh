#!/usr/bin/env bash
# Ranks on machines that are not there (network namespaces of this machine), with firewalls between them and with names that mean
# something else on each: who is named when a world does not come together, after how long, and that it does where it can.
#
#     scripts/firewall.sh        exit code 77 where something is missing. Needs root, `ip` and `nft` (Debian: iproute2, nftables)
#
# The program is an example of briquette-tcp, which this builds, or what MEET names.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "skipped: $*"; exit 77; }
[ "$(uname)" = Linux ] || skip "network namespaces are Linux's"
[ "$(id -u)" -eq 0 ] || skip "root makes network namespaces, and this is not root"
for tool in ip nft; do
    command -v $tool > /dev/null || skip "$tool is missing (Debian: apt-get install iproute2 nftables)"
done
if [ -z "${MEET:-}" ]; then
    cargo build --quiet --locked -p briquette-tcp --example meet
    MEET=${CARGO_TARGET_DIR:-target}/debug/examples/meet
fi
MEET=$(realpath "$MEET")

id=bq$$
a=$id-a b=$id-b c=$id-c
work=$(mktemp -d)
cleanup() {
    for space in $a $b $c $id-s; do
        ip netns del "$space" 2> /dev/null || true
        rm -rf "/etc/netns/$space"
    done
    rmdir /etc/netns 2> /dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
or_skip() { "$@" 2> "$work/error" || skip "this machine cannot: $* ($(cat "$work/error"))"; }

# Three machines at a switch, which is a namespace, too: 10.78.0.1 to 3 and fd78::1 to 3.
or_skip ip netns add $id-s
or_skip ip -n $id-s link add switch type bridge
or_skip ip -n $id-s link set switch up
number=0
for space in $a $b $c; do
    number=$((number + 1))
    or_skip ip netns add "$space"
    or_skip ip link add eth0 netns "$space" type veth peer name port$number netns $id-s
    or_skip ip -n $id-s link set port$number master switch up
    or_skip ip -n "$space" addr add 10.78.0.$number/24 dev eth0
    or_skip ip -n "$space" addr add fd78::$number/64 dev eth0 nodad
    or_skip ip -n "$space" link set lo up
    or_skip ip -n "$space" link set eth0 up
    mkdir -p "/etc/netns/$space"
done
# Every kind of rule below: each needs a module of the kernel.
cat > "$work/trial" << 'NFT'
table inet trial { chain input {
    type filter hook input priority 0; policy accept;
    ip saddr 10.78.0.9 drop; ip6 saddr fd78::9 drop; ip saddr 10.78.0.9 reject;
    iif lo accept; ct state established,related accept; icmp type echo-request accept; ip6 nexthdr icmpv6 accept; tcp dport 29500-29599 accept;
}; }
NFT
or_skip ip netns exec $b nft -f "$work/trial"
or_skip ip netns exec $b nft flush ruleset
# names SPACE LINE...: what names mean on that machine.
names() { printf '127.0.0.1 localhost\n' > "/etc/netns/$1/hosts"; printf '%s\n' "${@:2}" >> "/etc/netns/$1/hosts"; }
for space in $a $b $c; do names "$space" "10.78.0.1 host0"; done
(umask 077; echo "a secret of these three machines" > "$work/token")

# start LOCAL... : a rank on each machine of the spaces given, with MASTER_ADDR $master; fills codes and $work/rank-N.
world() {
    local rank=0 pids=() space
    codes=()
    began=$SECONDS
    for space in "$@"; do
        ip netns exec "$space" env RANK=$rank WORLD_SIZE=$# LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR="$master" MASTER_PORT=29500 \
            BRIQUETTE_TOKEN_FILE="$work/token" BRIQUETTE_JOIN_DEADLINE="${deadline:-60s}" timeout 100 "$MEET" job > "$work/rank-$rank" 2>&1 &
        pids+=($!)
        rank=$((rank + 1))
    done
    for pid in "${pids[@]}"; do
        local code=0
        wait "$pid" || code=$?
        codes+=($code)
    done
    took=$((SECONDS - began))
}
fail() { echo "firewall.sh: $*" >&2; tail -n 5 "$work"/rank-* >&2; exit 1; }
together() { [[ "${codes[*]}" =~ ^0( 0)*$ ]] || fail "$1: the world did not come together"; echo "$1: the world comes together ($took s)"; }
# apart WHAT SECONDS WORDS: every rank fails, within that time, with these words.
apart() {
    local rank
    for rank in "${!codes[@]}"; do
        [ "${codes[rank]}" -ne 0 ] || fail "$1: rank $rank did not fail"
        grep -qE -- "$3" "$work/rank-$rank" || fail "$1: rank $rank does not say: $3"
    done
    [ "$took" -le "$2" ] || fail "$1: it took $took s"
    echo "$1: every rank says so ($took s)"
}

master=host0
world $a $b $c
together "no firewall"

# Rank 1's machine throws away what comes from rank 2's.
ip netns exec $b nft -f - << 'NFT'
table inet wall { chain input {
    type filter hook input priority 0; policy accept;
    ip saddr 10.78.0.3 drop; ip6 saddr fd78::3 drop;
}; }
NFT
world $a $b $c
apart "a firewall between two workers" 40 'rank 2 could not reach rank 1 at 10\.78\.0\.2:[0-9]+: .*no answer'
deadline=6s
world $a $b $c
apart "the same with a short deadline" 20 'rank 2 could not reach rank 1 at 10\.78\.0\.2:[0-9]+: .*no answer'
unset deadline
# It answers that it does not want it.
ip netns exec $b nft -f - << 'NFT'
flush ruleset
table inet wall { chain input {
    type filter hook input priority 0; policy accept;
    ip saddr 10.78.0.3 reject;
}; }
NFT
world $a $b $c
apart "a firewall that rejects" 40 'rank 2 could not reach rank 1 at 10\.78\.0\.2:[0-9]+: .*(refused|unreachable)'

# Only a range of ports is open, everywhere.
for space in $a $b $c; do
    ip netns exec "$space" nft -f - << 'NFT'
flush ruleset
table inet wall { chain input {
    type filter hook input priority 0; policy drop;
    iif lo accept; ct state established,related accept; icmp type echo-request accept; ip6 nexthdr icmpv6 accept; tcp dport 29500-29599 accept;
}; }
NFT
done
BRIQUETTE_PORTS=29510-29519 world $a $b $c
together "ports 29500 to 29599 open, and BRIQUETTE_PORTS in them"
for space in $a $b $c; do ip netns exec "$space" nft flush ruleset; done

# Debian's hosts file: a machine's own name is 127.0.1.1 there. Two ranks are on that machine.
names $a "127.0.1.1 host0"
world $a $b $a $c
together "rank 0's name is loopback on its own machine"

# Two addresses of one name, and some machines know one of them only.
names $a "fd78::1 host0" "10.78.0.1 host0"
names $b "10.78.0.1 host0"
names $c "fd78::1 host0"
world $a $b
together "AAAA and A, of which the other machine knows A"
world $a $c
together "AAAA and A, of which the other machine knows AAAA"
echo "all of it held"
