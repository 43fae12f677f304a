#!/usr/bin/env bash
# Installs lavapipe, a Vulkan driver in software, for trying the wgpu backend where there is no GPU. Changes nothing where the
# machine has a Vulkan driver already.
set -euo pipefail

libraries=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2> /dev/null || true)
if compgen -G '/usr/share/vulkan/icd.d/*.json' > /dev/null && grep -q 'libvulkan\.so\.1' <<< "$libraries"; then
    echo "Vulkan drivers are there: $(basename -a /usr/share/vulkan/icd.d/*.json | tr '\n' ' ')"
    exit 0
fi
if ! command -v apt-get > /dev/null; then
    cat >&2 << 'TEXT'
This script knows Debian and Ubuntu only. Install a Vulkan loader and Mesa's software driver: Fedora: vulkan-loader
mesa-vulkan-drivers; Arch: vulkan-icd-loader vulkan-swrast. With a GPU its own driver is enough.
TEXT
    exit 1
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || { echo "run this as root: apt-get installs packages" >&2; exit 1; }
    sudo=(sudo)
fi
# A new machine knows no packages yet.
apt-cache show libvulkan1 mesa-vulkan-drivers > /dev/null 2>&1 || "${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y --no-install-recommends libvulkan1 mesa-vulkan-drivers
