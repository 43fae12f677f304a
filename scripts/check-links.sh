#!/usr/bin/env bash
# That what pages link to is there: files, and headings of pages; and that docs/SUMMARY.md has every page of the book. Links to other
# sites are not followed. Exits 1 and names what is broken.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v python3 > /dev/null || { echo "skipped: python3 is missing"; exit 0; }
git ls-files -co --exclude-standard '*.md' | python3 -c '
import os, re, sys, urllib.parse

def prose(text):
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))

def anchors(path):
    text = re.sub(r"^```.*?^```", "", open(path, encoding="utf-8").read(), flags=re.S | re.M)
    found, out = {}, set()
    for heading in re.findall(r"^#+ +(.*)$", text, re.M):
        name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", name).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        out.add(f"{name}-{count}" if count else name)
    return out

pages, broken = [line.strip() for line in sys.stdin if os.path.exists(line.strip())], []
for page in pages:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(open(page, encoding="utf-8").read())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(path):
            broken.append(f"{page}: {target}: there is no {path}")
        elif anchor and path.endswith(".md") and anchor not in anchors(path):
            broken.append(f"{page}: {target}: {path} has no such heading")
summary = open("docs/SUMMARY.md", encoding="utf-8").read()
book = {os.path.normpath(os.path.join("docs", target)) for target in re.findall(r"\]\(([^)#\s]+)\)", summary)}
for page in pages:
    if page.startswith("docs/") and page != "docs/SUMMARY.md" and page not in book:
        broken.append(f"docs/SUMMARY.md has no {page}")
print("\n".join(broken) or f"links of {len(pages)} pages hold")
sys.exit(bool(broken))
'
