#!/usr/bin/env bash
# Fills the table of a machine with an NVIDIA GPU: ResNet-18 and VGG-16 on CIFAR-sized images at batch 128, plain Burn beside one
# wrapped rank (dense, top-k 1 % + error feedback, 8-bit), and four ranks sharing the device.
#
#     benches/gpu.sh [CSV]      CUDA and Vulkan; libtorch too where LIBTORCH names one with CUDA
set -euo pipefail
cd "$(dirname "$0")/.."
csv=${1:-benches/results/$(date +%F)-gpu.csv}

note="no nvidia-smi"
if command -v nvidia-smi > /dev/null; then
    note=$(nvidia-smi --id=0 --query-gpu=name,driver_version,memory.total --format=csv,noheader)
fi
features=cuda,vulkan
backends=cuda,vulkan
if [ -n "${LIBTORCH:-}" ] || [ -n "${LIBTORCH_USE_PYTORCH:-}" ]; then
    features+=,tch
    backends+=,tch
fi
# By way of cargo, which knows where libtorch was found. What is no GPU leaves rows that say so.
cargo run --release -p briquette-benches --features "$features" --bin backends -- --gpu --backend "$backends" \
    --model resnet18,vgg16 --batch 128 --steps "${STEPS:-50}" --ranks 4 --note "$note" --csv "$csv"
