#!/usr/bin/env bash
# Does the library build with the next Burn? Checks `briquette`, without the backends that Burn drops, against a pre-release, in
# a copy of the sources. Fails where it does not, which tells what is to be changed and need not stop anybody.
#
#     scripts/next-burn.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-0.23.0-pre.1}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z Cargo.toml crates/briquette crates/briquette-core crates/briquette-derive crates/briquette-device crates/briquette-sim crates/briquette-tcp crates/briquette-zoo README.md | xargs -0 cp -P --parents -t "$copy"
cd "$copy"
sed -i -E "s/^(burn(-pack)? = \{ version = )\"[^\"]*\"/\1\"=$version\"/; s/^(default-)?members = .*/\1members = [\"crates\/briquette-core\", \"crates\/briquette-derive\", \"crates\/briquette-device\", \"crates\/briquette-sim\", \"crates\/briquette-tcp\", \"crates\/briquette-zoo\", \"crates\/briquette\"]/; /^exclude = /d" Cargo.toml
sed -i -E '/^(ndarray|tch) = /d; /^## .*Deprecated by Burn\.$/d' crates/briquette/Cargo.toml
# Tests and their helpers are not asked for.
sed -i -E '/^\[dev-dependencies\]/,/^\[/{/^\[dev-dependencies\]/d;/^[a-z]/d}' crates/briquette{,-core,-device,-sim,-tcp,-zoo}/Cargo.toml
RUSTFLAGS="${RUSTFLAGS:-} --allow unexpected_cfgs" cargo check --quiet -p briquette --no-default-features --features flex,train
echo "briquette builds with Burn $version"
