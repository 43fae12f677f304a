#!/usr/bin/env bash
# Size of the house: lines of code, documentation and tests by crate; test binaries; implementations of the state traits; words of the book;
# titles that break the rule of language.
#
#   scripts/counts.sh [REVISION]          # of the working tree, or of a revision
set -euo pipefail
cd "$(dirname "$0")/.."
tree=$PWD
if [ $# -gt 0 ]; then
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    git archive "$1" | tar -x -C "$tree"
fi
python3 - "$tree" <<'PYTHON'
import os, re, sys

root = sys.argv[1]
skipped = {"target", ".git", "runs"}
files = []
for folder, names, found in os.walk(root):
    names[:] = [name for name in names if name not in skipped]
    files += [os.path.relpath(os.path.join(folder, name), root) for name in found]

def crate(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "crates" else parts[0]

rows, impls, questions = {}, {}, 0
title = re.compile(r"(What|Who|Whom|Whose|How|Which|Where|Whether) ")
for path in sorted(path for path in files if path.endswith(".rs")):
    in_tests = bool(re.search(r"(^|/)(tests|testkit|fuzz)(/|\.rs$)|_tests\.rs$", path))
    row = rows.setdefault(crate(path), {"code": 0, "docs": 0, "tests": 0})
    inside = False
    for line in open(os.path.join(root, path), encoding="utf-8"):
        text = line.strip()
        is_doc = text.startswith(("///", "//!"))
        if is_doc and not inside and title.match(text[3:].strip() + " "):
            questions += 1
        inside = is_doc
        if text == "#[cfg(test)]":
            in_tests = True
        if not text or text.startswith("//") and not is_doc:
            continue
        row["tests" if in_tests else "docs" if is_doc else "code"] += 1
        if text.startswith("#[described(") and not in_tests:
            impls["Described"] = impls.get("Described", 0) + 1
        found = re.match(r"impl(<.*>)? (Stateful|Described|Reducer|SyncStrategy|Controller|Compressor) for ", text)
        if found and not in_tests:
            impls[found[2]] = impls.get(found[2], 0) + 1

binaries = {p for p in files if re.match(r"(crates/[^/]+|[^/]+|examples/ports)/tests/([^/]+\.rs|[^/]+/main\.rs)$", p)}
book = [p for p in files if re.match(r"docs/[^/]+\.md$", p)]
words = lambda pages: sum(len(open(os.path.join(root, p), encoding="utf-8").read().split()) for p in pages)
print(f"{'lines':28}{'code':>8}{'docs':>8}{'tests':>8}")
for name, row in sorted(rows.items(), key=lambda item: -item[1]["code"]):
    print(f"{name:28}{row['code']:8}{row['docs']:8}{row['tests']:8}")
sums = {kind: sum(row[kind] for row in rows.values()) for kind in ("code", "docs", "tests")}
print(f"{'all':28}{sums['code']:8}{sums['docs']:8}{sums['tests']:8}")
print("implementations:", ", ".join(f"{name} {count}" for name, count in sorted(impls.items())))
print("integration test binaries:", len(binaries))
print("words of the book:", words(book), "chapters;", words(p for p in files if p.startswith("docs/evidence/")), "evidence;", words(p for p in files if p.startswith("docs/adr/")), "decisions;", words(["README.md"]), "README;", words(["CHANGELOG.md"]), "changelog")
print("titles that are questions:", questions)
PYTHON
