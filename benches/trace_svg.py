#!/usr/bin/env python3
"""Draws one step of traces that the trainers' --trace wrote, one below the other on the same scale. SVG on standard output.

    python3 benches/trace_svg.py STEP TITLE=FILE [TITLE=FILE...] > step.svg
"""

import html
import json
import sys

COLOURS = {
    "forward": "#c9daf8", "backward": "#9fc5e8", "exchange": "#6aa84f", "encode": "#b4a7d6", "decode": "#8e7cc3", "read": "#d5a6bd",
    "wait": "#e06666", "commit": "#f6b26b", "optimizer": "#ffe599", "arrive": "#eeeeee",
}
LEFT, WIDTH, LANE, GAP = 130, 760, 26, 8


def spans(path):
    """(start, end, thread, name, arguments) of every span, in milliseconds."""
    threads, open_spans, found = {}, {}, []
    for event in json.load(open(path)):
        thread = event.get("tid")
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads[thread] = event["args"]["name"]
        elif event["ph"] == "B":
            open_spans.setdefault(thread, []).append(event)
        elif event["ph"] == "E":
            begin = open_spans[thread].pop()
            arguments = {**begin.get("args", {}), **event.get("args", {})}
            found.append((begin["ts"] / 1e3, event["ts"] / 1e3, thread, begin["name"], arguments))
    return threads, sorted(found)


def step_of(path, step):
    """The spans of one step, from its forward pass to the end of its optimizer, on a clock that begins with it."""
    threads, found = spans(path)
    begin = next(start for start, _, _, name, args in found if name == "compute" and args.get("step") == str(step))
    end = next(end for start, end, _, name, _ in found if name == "optimizer" and start > begin)
    inside = [(a - begin, b - begin, t, name, args) for a, b, t, name, args in found if a >= begin - 1e-9 and b <= end + 1e-9]
    return threads, inside, end - begin


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    step, parts = int(sys.argv[1]), [part.split("=", 1) for part in sys.argv[2:]]
    drawn = [(title, *step_of(path, step)) for title, path in parts]
    longest = max(length for *_, length in drawn)
    scale, out, y = WIDTH / longest, [], 20
    for title, threads, found, length in drawn:
        out.append(f'<text x="0" y="{y}" font-weight="bold">{html.escape(title)}: {length:.0f} ms</text>')
        y += GAP
        for thread in sorted({t for _, _, t, name, _ in found if name in COLOURS}):
            lane = threads.get(thread, str(thread))
            out.append(f'<text x="0" y="{y + 17}">{html.escape(lane)}</text>')
            for start, end, t, name, arguments in found:
                if t != thread or name not in COLOURS or (end - start) * scale < 0.3:
                    continue
                x, width = LEFT + start * scale, max((end - start) * scale, 0.5)
                what = f"{name} {arguments.get('operation', '')} {arguments.get('bucket', '')}: {end - start:.1f} ms"
                out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="{COLOURS[name]}"><title>{html.escape(what)}</title></rect>')
            for start, end, t, name, arguments in found:
                if t == thread and name == "bucket" and (end - start) * scale > 12:
                    middle = LEFT + (start + end) / 2 * scale
                    out.append(f'<text x="{middle:.1f}" y="{y + 17}" text-anchor="middle" font-size="11">{arguments["bucket"]}</text>')
            y += LANE + 3
        y += 22
    tick = next(t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000) if longest / t <= 10)
    for at in range(0, int(longest) + 1, tick):
        x = LEFT + at * scale
        out.append(f'<line x1="{x:.1f}" y1="10" x2="{x:.1f}" y2="{y - 18}" stroke="#bbb" stroke-dasharray="2,3"/>')
        out.append(f'<text x="{x:.1f}" y="{y - 4}" text-anchor="middle" font-size="11">{at} ms</text>')
    y, x = y + 16, 0
    for name, colour in COLOURS.items():
        out.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{colour}"/><text x="{x + 15}" y="{y}" font-size="11">{name}</text>')
        x += 30 + 7 * len(name)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{y + 12}" font-family="sans-serif" font-size="13">')
    print('<rect width="100%" height="100%" fill="white"/>')
    print("\n".join(out))
    print("</svg>")


main()
