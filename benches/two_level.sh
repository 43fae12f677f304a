#!/usr/bin/env bash
# What crosses the link between two machines of two ranks each, in a step: network namespaces, real sockets, ResNet-8.
#   benches/two_level.sh CIFAR10_DIRECTORY [TARGET_DIRECTORY] > two-level.csv      (needs root, iproute2)
# Of a run of 48 steps and one of 16 the difference, so that joining and evaluating are not in it.
set -euo pipefail
cd "$(dirname "$0")/.."
data=$1 bin=${2:-target}/release
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export RAYON_NUM_THREADS=1 RANKS_PER_MACHINE=2
# bytes STEPS FLAG...: those that the first machine sent.
bytes() {
    scripts/two-machines.sh 1gbit "$bin/cifar" --data "$data" --dataset cifar10 --model resnet8 --batch 4 --train-limit 4096 --test-limit 64 \
        --steps "$1" --epochs 1 --schedule constant --checkpoint-every 0 --eval-every 9 --plain "${@:2}" --out "$out/run" --overwrite 2>&1 > /dev/null \
        | tee /dev/stderr | sed -n 's/^between the machines: \([0-9]*\) bytes there.*/\1/p'
}
machine=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "between_machines,flags,bytes_a_step,of_dense,machine,cores,date,command"
dense=
row() {
    local name=$1 few many
    shift
    few=$(bytes 16 "$@") many=$(bytes 48 "$@")
    dense=${dense:-$(((many - few) / 32))}
    echo "$name,$*,$(((many - few) / 32)),$(awk "BEGIN { printf \"%.4f\", ($many - $few) / 32 / $dense }"),$machine,$(nproc),$(date +%F),benches/two_level.sh cifar10"
}
row "every step" --reducer dense
row "every step; hierarchical" --reducer hierarchical:dense
row "every step; top-k 10x" --reducer gather:topk:10x --feedback error
row "every step; hierarchical; top-k 10x" "--reducer" "hierarchical:(gather:topk:10x)" --feedback error
row "Local SGD; H = 8" --strategy local-sgd:8
row "two levels; Local SGD; H = 8" --strategy "two-level:(local-sgd:8)"
row "Local SGD; H = 8; top-k 10x" --strategy local-sgd:8 --reducer gather:topk:10x --feedback error
row "two levels; Local SGD; H = 8; top-k 10x" --strategy "two-level:(local-sgd:8)" --reducer gather:topk:10x --feedback error
row "SGP" --strategy sgp
row "two levels; SGP" --strategy "two-level:(sgp)"
