"""What /proc says of a process. It may end between two looks, and within one: that is an answer, never an error."""


def read(pid, file):
    """The text of /proc/PID/FILE; empty where the process is gone."""
    try:
        with open(f"/proc/{pid}/{file}", encoding="utf-8", errors="surrogateescape") as text:
            return text.read()
    except OSError:
        return ""


def process_state(pid):
    """Its letter, such as S, T or Z; None where the process is gone."""
    stat = read(pid, "stat")
    return stat.rsplit(")", 1)[1].split()[0] if stat else None


def is_alive(pid):
    """Zombies are not: init may reap late."""
    return process_state(pid) not in ("Z", "X", None)


def process_name(pid):
    return read(pid, "comm").strip()


def process_command(pid):
    return read(pid, "cmdline").replace("\0", " ").strip()


def children(pid):
    return [int(child) for child in read(pid, f"task/{pid}/children").split()]


def child_named(pid, name):
    return next(child for child in children(pid) if process_name(child) == name)


def descendants(pid):
    """Pids of a process and all below it."""
    found = [pid]
    for above in found:
        found += children(above)
    return found
