#!/usr/bin/env python3
"""Measures how long a process takes to join a running world with a large model, and writes benches/results/elastic-join.csv.

    benches/elastic_join.py [--programs target/release] [--mbit 100,300,1000] [--joins 5]

Runs itself in a network namespace of its own (`unshare -n`, as root), whose loopback has the given rate. Three ranks train a perceptron with 64 MiB
of parameters and Adam (192 MiB of state) under top-k 1000x. The last rank is killed with SIGKILL, and the launcher starts it again. A join is the
time from the new process's call to the end of its first counted step; a stall is the longest time between two steps of rank 0 in it, less the median step.
The transfer is that of the same bytes between two sockets over the same loopback. Rows have medians.
"""

import argparse
import csv
import datetime
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from elastic_soak import ROOT, children  # noqa: E402

STATE = 3 * 4 * 16_800_874


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    parser.add_argument("--programs", type=Path, default=Path(target) / "release")
    parser.add_argument("--mbit", default="100,300,1000")
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--csv", type=Path, default=ROOT / "benches/results/elastic-join.csv")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        sys.exit(subprocess.call(["unshare", "-n", sys.executable, *sys.argv, "--inside"]))
    subprocess.run("ip link set lo up mtu 1500".split(), check=True)
    machine = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    for mbit in map(int, args.mbit.split(",")):
        shape = f"tc qdisc replace dev lo root tbf rate {mbit}mbit burst 256kb latency 200ms"
        subprocess.run(shape.split(), check=True)
        transfer = statistics.median(transfer_seconds() for _ in range(3))
        joins, stalls, steps = world(args)
        join = statistics.median(joins)
        row = {
            "mbit": mbit, "state_mib": round(STATE / 2**20), "joins": len(joins), "transfer_seconds": round(transfer, 2),
            "join_seconds": round(join, 2), "times_transfer": round(join / transfer, 2), "join_seconds_max": round(max(joins), 2),
            "stall_seconds": round(statistics.median(stalls), 2), "step_seconds": round(statistics.median(steps), 2),
            "machine": machine, "cores": os.cpu_count(), "date": datetime.date.today().isoformat(),
            "command": f"benches/elastic_join.py --mbit {mbit} --joins {args.joins}",
        }
        print(row, flush=True)
        with open(args.csv, "a", newline="") as file:
            writer = csv.DictWriter(file, row, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(row)


def transfer_seconds():
    """Returns the seconds for the bytes of the state over one connection of the loopback."""
    listener = socket.create_server(("127.0.0.1", 0))

    def receive():
        with listener.accept()[0] as connection:
            buffer, left = bytearray(1 << 20), STATE
            while left:
                left -= connection.recv_into(buffer)
            connection.sendall(b"1")

    receiver = threading.Thread(target=receive)
    receiver.start()
    with socket.create_connection(listener.getsockname()) as connection:
        begin, part = time.monotonic(), bytes(1 << 20)
        whole, rest = divmod(STATE, len(part))
        for _ in range(whole):
            connection.sendall(part)
        connection.sendall(part[:rest])
        connection.recv(1)
        seconds = time.monotonic() - begin
    receiver.join()
    listener.close()
    return seconds


def events(path):
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(float(line[0]), line[1], int(line[2])) for line in lines if len(line) == 3]


def world(args):
    """Returns the seconds of the joins, of rank 0's stalls, and of its steps."""
    joins, stalls, steps = [], [], []
    with tempfile.TemporaryDirectory() as work:
        command = [args.programs / "briquette", "launch", "--ranks", "3", "--elastic", "1", "--rejoin", "--"]
        command += [args.programs / "elastic_join", "--out", work, "--steps", "1000000"]
        with open(Path(work, "log.txt"), "w") as log:
            launcher = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            seen, victim = wait_for(launcher, work, set())
            while len(joins) < args.joins:
                # A few steps of the whole world.
                first = children(launcher.pid)[0]
                wait(launcher, work, lambda: len(steps_of(work, first)) > 3 and len(steps_of(work, victim)) > 3)
                os.kill(victim, signal.SIGKILL)
                seen, victim = wait_for(launcher, work, seen)
                new = events(Path(work, f"{victim}.log"))
                call, counted = new[0][0], next(event[0] for event in new if event[1] == "step")
                ends = [event[0] for event in events(Path(work, f"{first}.log")) if event[1] == "step"]
                gaps = [(b, b - a) for a, b in zip(ends, ends[1:])]
                usual = statistics.median(gap for _, gap in gaps)
                joins.append(counted - call)
                stalls.append(max(gap for end, gap in gaps if call <= end <= counted + 0.5 * usual) - usual)
                steps.append(usual)
        finally:
            launcher.send_signal(signal.SIGINT)
            time.sleep(1)
            launcher.send_signal(signal.SIGINT)
            launcher.wait(timeout=60)
    return joins, stalls, steps


def steps_of(work, pid):
    return [event for event in events(Path(work, f"{pid}.log")) if event[1] == "step"]


def wait_for(launcher, work, seen):
    """Waits for the first step of the newest process; returns all processes so far, and that one."""
    newest = lambda: {int(path.stem) for path in Path(work).glob("*.log")} - seen
    wait(launcher, work, lambda: newest() and all(steps_of(work, pid) for pid in newest()) and len(newest() | seen) >= 3)
    new = newest()
    victim = children(launcher.pid)[2] if len(new) > 1 else new.pop()
    return newest() | seen, victim


def wait(launcher, work, is_true):
    deadline = time.monotonic() + 300
    while not is_true():
        if launcher.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the world does not continue: {Path(work, 'log.txt').read_text()[-2000:]}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
