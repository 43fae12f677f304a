#!/usr/bin/env bash
# Puts what the tests have seen into docs/faults.md (the rows of "What held") and into the outcomes of the matrix of faults.
#
#     cargo test --workspace && scripts/faults-page.sh
#
# Rows of tests that did not run on this machine stay as they are. A row whose test is gone is to be removed by hand;
# scripts/check-rules.sh names it.
set -euo pipefail
cd "$(dirname "$0")/.."
page=docs/faults.md
tmp="${CARGO_TARGET_DIR:-target}/tmp"

# between NAME: the lines of the page's section NAME, which lies between two comments.
between() { sed -n "/<!-- $1 -->/,/<!-- end of $1 -->/p" "$page" | grep '^| ' || true; }
# replace NAME FILE: that section holds the lines of FILE.
replace() {
    awk -v name="$1" -v file="$2" '
        $0 == "<!-- end of " name " -->" { inside = 0 }
        !inside { print }
        $0 == "<!-- " name " -->" { inside = 1; while ((getline line < file) > 0) print line }
    ' "$page" >"$page.partial"
    mv "$page.partial" "$page"
}

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
if [ -d "$tmp/held" ]; then
    {
        printf '| what was done | times | what came of it | test |\n|---|---|---|---|\n'
        {
            # What is there but for the rows of the tests that ran, in the order of the page; new ones at the end.
            between 'what held' | grep -v '^| what was done' | while IFS= read -r row; do
                test=$(sed -nE 's/.*`([^`]+)` \|$/\1/p' <<<"$row")
                if [ -f "$tmp/held/$test" ]; then cat "$tmp/held/$test"; else printf '%s\n' "$row"; fi
            done
            for file in "$tmp"/held/*; do
                grep -qF "\`$(basename "$file")\` |" "$page" || cat "$file"
            done
        }
    } >"$rows"
    replace 'what held' "$rows"
fi
if [ -f "$tmp/faults.md" ]; then
    cp "$tmp/faults.md" crates/briquette-tcp/tests/fault_matrix/outcomes.md
fi
