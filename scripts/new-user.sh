#!/usr/bin/env bash
# A new user's path: an empty folder, and docs/getting-started.md word for word. Nothing else is typed.
#
#   scripts/new-user.sh [WORK_DIRECTORY]
#
# Commands of the page are run, its Rust program is src/main.rs, and every line of output that the page shows, up to its first `…`,
# must come. What the page takes from the registry is taken from this checkout: the two crates are not published before it is tested. Builds
# are kept in WORK_DIRECTORY, where one is given.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD page=$PWD/docs/getting-started.md
work=${1:-}
if [ -z "$work" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work/bin" "$work/target"
work=$(cd "$work" && pwd)
rm -rf "$work/two-ranks"
cargo=$(command -v cargo)

cat > "$work/bin/cargo" <<SHIM
#!/usr/bin/env bash
case "\$*" in
    "add briquette "*) exec "$cargo" "\$@" --path "$root/crates/briquette" ;;
    "install briquette-cli")
        CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}" "$cargo" build --release --locked --manifest-path "$root/Cargo.toml" -p briquette-cli
        exec cp "${CARGO_TARGET_DIR:-$root/target}/release/briquette" "$work/bin/" ;;
    *) exec env -u CARGO_TARGET_DIR "$cargo" "\$@" ;;
esac
SHIM
chmod +x "$work/bin/cargo"

# block N KIND: the N-th fenced block of that kind.
block() {
    awk -v want="$1" -v fence="\`\`\`$2" '$0 == fence { n++; inside = n == want; next } $0 == "```" { inside = 0 } inside' "$page"
}
# shown N FILE: each line of the page's N-th text block, up to its first `…`, is in FILE.
shown() {
    while IFS= read -r line; do
        grep -qF -- "${line%%…*}" "$2" || { echo "docs/getting-started.md shows \`$line\`, and the output has none"; cat "$2"; exit 1; }
    done < <(block "$1" text)
}
# typed N: the page's N-th block of commands.
typed() {
    block "$1" sh > "$work/commands"
    sed 's/^/$ /' "$work/commands"
    # shellcheck source=/dev/null
    source "$work/commands"
}

export PATH=$work/bin:$PATH
cd "$work"
typed 1
ln -s "$work/target" target
block 1 rust > src/main.rs
typed 2 > "$work/threads" 2> "$work/log" || { cat "$work/log" "$work/threads"; exit 1; }
cat "$work/threads"
shown 1 "$work/threads"
typed 3 > "$work/processes" 2> "$work/log" || { cat "$work/log" "$work/processes"; exit 1; }
cat "$work/processes"
shown 2 "$work/processes"
echo "docs/getting-started.md holds, word for word"
