#!/usr/bin/python3
"""Which HTTP library? bench/http_hello.py BUILD-DIR: see docs/http-library.md.

The libraries are measured in turns, so that a noisy moment hits all. What the server's own processor time
per request is depends least on what else runs on the machine; requests/s are wrk's.
"""
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import time

LIBRARIES = ["mhd", "h2o", "event", "own"]
LATER = ["mhd", "h2o", "own"]  # can answer from another thread's work
PORT = 7481
ROUNDS = 5
WAITS = min(10000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kib(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def wrk(pid, seconds=1, path=""):
    """(requests/s, server's us of processor time per request, p99)"""
    before = cpu_s(pid)
    out = subprocess.run(["wrk", "-t1", "-c64", f"-d{seconds}", "--latency", f"http://127.0.0.1:{PORT}/{path}"],
                         capture_output=True, text=True, check=True).stdout
    n = int(re.search(r"(\d+) requests in", out)[1])
    return n / seconds, (cpu_s(pid) - before) / n * 1e6, re.search(r"99%\s+(\S+)", out)[1]


def start(build, library):
    server = subprocess.Popen([os.path.join(build, "bench", "http_hello"), library, str(PORT)])
    while socket.socket().connect_ex(("127.0.0.1", PORT)):
        time.sleep(0.05)
    return server


def hold_waits(n):
    held = []
    for _ in range(n):
        s = socket.create_connection(("127.0.0.1", PORT))
        s.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        held.append(s)
    return held


def measure(build):
    speed = {library: [] for library in LIBRARIES}
    later = {library: [] for library in LATER}
    for _ in range(ROUNDS):
        for library in LIBRARIES:
            server = start(build, library)
            speed[library].append(wrk(server.pid))
            if library in LATER:
                later[library].append(wrk(server.pid, path="later"))
            server.kill()
            server.wait()
    for library in LIBRARIES:
        rate, us, p99 = (sorted(column)[ROUNDS // 2] for column in zip(*speed[library]))
        later_us = sorted(x[1] for x in later[library])[ROUNDS // 2] if library in LATER else float("nan")
        server = start(build, library)
        wrk(server.pid, 1)
        empty = rss_kib(server.pid)
        held = hold_waits(WAITS)
        time.sleep(1)
        each = (rss_kib(server.pid) - empty) / WAITS
        beside = wrk(server.pid)
        print(f"{library:6} {rate:9.0f} requests/s  {us:5.1f} us each  p99 {p99:>8}   later {later_us:5.1f} us each   {each:5.2f} KiB per wait of {WAITS}, "
              f"beside them {beside[1]:5.1f} us each", flush=True)
        for s in held:
            s.close()
        server.kill()
        server.wait()


if __name__ == "__main__":
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    measure(os.path.abspath(sys.argv[1]))
