"""What the tests of the program share: a private store for each test, and nothing left running.

    def test_something(hf):                      # runs on each of STORES
        lease = hf.json("acquire", "a")
        assert hf("release", "a", lease["token"]).returncode == 0
        holder = hf.start("run", "a", "--", "sleep", "100")
        poll(lambda: hf.json("status", "a")["state"] == "held")

    @pytest.mark.stores("sqlite")                # only there
    @in_files                                    # only where the store is a file
"""
import json
import os
import signal
import subprocess
import sys
import time
import uuid
import zlib
from datetime import datetime

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # for servers and proxy
from servers import Etcd, PgBouncer, Postgres, Scratch  # noqa: E402

# Whoever runs the tests in the background may ignore signals; what they start must not inherit that.
for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, signal.SIG_DFL)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("HOLDFAST_BUILD", os.path.join(ROOT, "build"))

# Longer than anything takes on a loaded machine under sanitizers; a limit, never a measure.
PATIENCE_S = 120

# HOLDFAST_LOAD=full: the load that is promised, for a quarter of an hour; else what a minute can bear.
FULL = os.environ.get("HOLDFAST_LOAD") == "full"

# HOLDFAST_BRIEF=1, for sanitizers: no faults, and each test on one of its stores only, chosen by its name, so that every
# store is met.
BRIEF = os.environ.get("HOLDFAST_BRIEF") == "1"
if BRIEF:
    collect_ignore = ["faults"]

# For a lease that must not be lost: a renewal may be late by almost a third of it, as the command
# is asked to end a grace before the deadline. A busy machine stands still for a second at times.
TTL_S = 6


def poll(condition, limit_s=PATIENCE_S, every_s=0.01):
    """The first true value of condition(); fails when `limit_s` have passed without one."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not so after {limit_s} s"
        time.sleep(every_s)


def expiry_s(status):
    return datetime.fromisoformat(status["expiresAt"]).timestamp()


def expect_renewals(hf, name, lived_s=0):
    """The lease, of TTL_S and always the same one, is renewed twice and until it lives so much longer."""
    first = hf.json("status", name)
    expiries = [expiry_s(first)]

    def done():
        status = hf.json("status", name)
        assert (status["state"], status["fence"]) == ("held", first["fence"]), hf.ok("why", name)
        if expiry_s(status) > expiries[-1] + TTL_S / 6:  # what is shown may differ by a rounding
            expiries.append(expiry_s(status))
        return len(expiries) > 2 and expiries[-1] >= expiries[0] + lived_s

    poll(done)


def built(*path):
    """A program of the build, such as built("tests", "hammer"); skips the test where it is missing."""
    found = os.path.join(BUILD, *path)
    if not os.path.exists(found):
        pytest.skip(f"{found} is not built")
    return found


def is_listened_at(path):
    """Does a server take connections at this Unix socket? It exists a moment before."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as sockets:
        return any(line.split()[3] == "00010000" and line.rstrip("\n").endswith(f" {path}") for line in sockets)


def find_holdfast():
    return os.path.abspath(os.environ.get("HOLDFAST") or os.path.join(BUILD, "holdfast"))


def marked_processes(mark):
    """Pids of every living process whose environment carries `mark`, whoever its parent is now."""
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environ:
                if mark.encode() in environ.read().split(b"\0"):
                    pids.append(int(entry))
        except OSError:
            pass
    return pids


def kill_marked(mark):
    """Kill until none is left: what is killed may have been forking."""

    def none_left():
        pids = marked_processes(mark)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not pids

    poll(none_left)


# The signals that end a program of ours only by a fault of ours.
FATAL = {-signal.SIGILL, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGSEGV}


def report_crash(argv, returncode):
    """tests/run fails for it, whatever comes of the test."""
    place = os.environ.get("HOLDFAST_CRASHES")
    if place and returncode in FATAL:
        with open(os.path.join(place, f"signal.{uuid.uuid4()}"), "w") as report:
            report.write(f"{signal.Signals(-returncode).name} ended {argv}\nin {os.environ.get('PYTEST_CURRENT_TEST')}\n")


class Holdfast:
    """The program with a store of its own. Everything started through it dies with the test."""

    def __init__(self, store_url, tmp_path):
        self.url = store_url
        self.scheme = store_url.split(":", 1)[0]
        self.program = find_holdfast()
        self.tmp_path = tmp_path
        self.mark = f"HOLDFAST_TEST_MARK={uuid.uuid4()}"
        self.children = []
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "PG"))}
        self.env.update([self.mark.split("=")], HOLDFAST_STORE=store_url, HOME=str(tmp_path),
                        XDG_STATE_HOME=str(tmp_path / "state"), NO_COLOR="1")

    def __call__(self, *args, input=None, env=None, timeout=PATIENCE_S, **options):
        """Run to the end: .returncode, .stdout and .stderr (text)."""
        if input is None:
            options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run([self.program, *map(str, args)], input=input, text=True,
                              capture_output=True, timeout=timeout, env={**self.env, **(env or {})},
                              **options)
        report_crash(done.args, done.returncode)
        return done

    def ok(self, *args, **options):
        """Run, demand exit code 0, and give back stdout without its last newline."""
        done = self(*args, **options)
        assert done.returncode == 0, f"{args}: exit {done.returncode}: {done.stderr}"
        return done.stdout.rstrip("\n")

    def json(self, *args, **options):
        """The one JSON object that the command prints with --json."""
        return json.loads(self.ok("--json", *args, **options))

    def lines(self, *args, **options):
        """The JSON objects, one per line, of a list."""
        return [json.loads(line) for line in self.ok("--json", *args, **options).splitlines()]

    def start(self, *args, env=None, **options):
        """Start and leave running: a Popen whose pipes are text."""
        return self.start_program([self.program, *map(str, args)], env=env, **options)

    def start_program(self, argv, env=None, **options):
        """The same for any other program, with the store in its environment."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        child = subprocess.Popen(argv, text=True, env={**self.env, **(env or {})}, **options)
        self.children.append(child)
        return child

    def close(self):
        kill_marked(self.mark)
        for child in self.children:
            child.kill()
            report_crash(child.args, child.wait(timeout=PATIENCE_S))
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe:
                    pipe.close()


def on_postgres(request):
    """A database of its own on the server that all tests of this process share."""
    server = request.getfixturevalue("shared_postgres")
    database = f"test_{uuid.uuid4().hex[:12]}"
    yield server.create_database(database)
    server.drop_database(database)


def on_etcd(request):
    """A prefix of its own on the member that all tests of this process share."""
    server = request.getfixturevalue("shared_etcd")
    prefix = f"test_{uuid.uuid4().hex[:12]}"
    yield server.url(prefix)
    server.ctl("del", "--prefix", f"{prefix}/")


def on_http(request):
    """A service of its own on a sqlite store."""
    tmp_path = request.getfixturevalue("tmp_path")
    holdfast = Holdfast(f"sqlite:{tmp_path}/store.db", tmp_path)
    served = holdfast.start("serve", "--listen", f"unix:{tmp_path}/socket", stderr=subprocess.DEVNULL)
    poll(lambda: served.poll() is not None or is_listened_at(f"{tmp_path}/socket"))
    yield f"http://localhost?socket={tmp_path}/socket"
    holdfast.close()


FILE_STORES = {"sqlite": "sqlite:{}/store.db", "file": "file:{}/locks"}
STORES = {**FILE_STORES, "postgres": on_postgres}
ON_DEMAND = {"http": on_http, "etcd": on_etcd}  # only where a test's marker names it


in_files = pytest.mark.stores(*FILE_STORES)


def pytest_configure(config):
    config.addinivalue_line("markers", "stores(*schemes): run only on these stores")


def pytest_generate_tests(metafunc):
    if "store_url" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("stores")
        stores = marker.args if marker else list(STORES)
        if BRIEF:
            stores = [stores[zlib.crc32(metafunc.definition.nodeid.encode()) % len(stores)]]
        metafunc.parametrize("store_url", stores, indirect=True)


@pytest.fixture
def store_url(request, tmp_path):
    if request.param in FILE_STORES:
        yield FILE_STORES[request.param].format(tmp_path)
    else:
        yield from {**STORES, **ON_DEMAND}[request.param](request)


@pytest.fixture
def hf(store_url, tmp_path):
    holdfast = Holdfast(store_url, tmp_path)
    yield holdfast
    holdfast.close()


@pytest.fixture
def small_disk(tmp_path):
    """An empty tmpfs with little room."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0755", "none", path],
                          capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"can't mount a tmpfs: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk):
    """Leave no room on a small disk; remove its "filler" to heal it."""
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(b"x" * 4096)


# ---- servers: see servers.py


@pytest.fixture(scope="session")
def shared_postgres():
    settings = {"max_connections": "1000"} if FULL else {}  # a worker has a few
    with Scratch() as scratch:
        server = Postgres(scratch, **settings)
        server.start()
        yield server


@pytest.fixture(scope="session")
def shared_etcd():
    with Scratch() as scratch:
        server = Etcd(scratch)
        server.start()
        yield server


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Whether the test itself failed, for what its fixtures show at their end."""
    report = (yield).get_result()
    if report.when == "call":
        item.failed = report.failed


@pytest.fixture
def scratch(request):
    """A place for servers of this test alone; their logs are shown when it fails."""
    with Scratch() as scratch:
        yield scratch
        if getattr(request.node, "failed", True):
            for server in scratch.servers:
                print(f"---- {server.name}\n{server.log()[-8000:]}")


@pytest.fixture
def start_postgres(scratch):
    """start_postgres(**options of Postgres): one of the test's own, to be stopped, killed and cut off."""

    def start(**options):
        server = Postgres(scratch, **options)
        server.start()
        return server

    return start


@pytest.fixture
def start_pgbouncer():
    """start_pgbouncer(server, **settings); it ends with the server's scratch directory."""
    bouncers = []

    def start(server, **settings):
        bouncers.append(PgBouncer(server, **settings))
        bouncers[-1].start()
        return bouncers[-1]

    yield start
    for bouncer in bouncers:
        bouncer.kill()


@pytest.fixture
def make_holdfast(tmp_path):
    """make_holdfast(url): the program on this store."""
    made = []

    def make(url):
        made.append(Holdfast(url, tmp_path))
        return made[-1]

    yield make
    for holdfast in made:
        holdfast.close()


@pytest.fixture
def server(start_postgres):
    """A PostgreSQL of the test's own."""
    return start_postgres()


@pytest.fixture
def direct(server, make_holdfast):
    """The program on a new database of that server."""
    holdfast = make_holdfast(server.create_database("locks"))
    holdfast.ok("init")
    return holdfast
