#!/usr/bin/python3
"""A lock as the programs keep it that know only the three-field lock file: made exclusively, its
owner verified before it is removed, taken for stale when createdAt is too old; 100 ms steps.

    seed_lock.py count FILE.lock COUNTER TIMES   add 1 to the number in COUNTER, TIMES times
    seed_lock.py hold FILE.lock                  hold it until stdin ends; prints "held", "released"

Options from the environment: SEED_STALE_S (300), SEED_TIMEOUT_S (30), SEED_STEP_S (0.1).
"""
import datetime
import json
import os
import random
import sys
import time

STALE_S = float(os.environ.get("SEED_STALE_S", "300"))
TIMEOUT_S = float(os.environ.get("SEED_TIMEOUT_S", "30"))
STEP_S = float(os.environ.get("SEED_STEP_S", "0.1"))


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        return data if all(key in data for key in ("lockId", "createdAt", "processId")) else None
    except (OSError, ValueError):
        return None


def clean_up_stale(path, data):
    created = datetime.datetime.fromisoformat(data["createdAt"].replace("Z", "+00:00"))
    age_s = (datetime.datetime.now(datetime.timezone.utc) - created).total_seconds()
    if age_s <= STALE_S:
        return False
    print(f"STALE LOCK of {data['processId']}, {age_s:.0f} s old: removed", file=sys.stderr)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return True


def acquire(path):
    lock_id = f"{int(time.time() * 1000)}-{random.getrandbits(48):x}"
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        now = datetime.datetime.now(datetime.timezone.utc)
        data = {"lockId": lock_id,
                "createdAt": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "processId": f"pid-{os.getpid()}"}
        try:
            with open(path, "x", encoding="utf-8") as file:
                json.dump(data, file)
            return lock_id
        except FileExistsError:
            pass
        held = read(path)
        if held and clean_up_stale(path, held):
            continue
        if time.monotonic() > deadline:
            sys.exit(f"{path} is held by {held and held['processId']}")
        time.sleep(STEP_S)


def release(path, lock_id):
    held = read(path)
    if not held:
        sys.exit("the lock file is missing or invalid")
    if held["lockId"] != lock_id:
        sys.exit(f"OWNERSHIP VERIFICATION FAILED: it is owned by {held['processId']}")
    os.unlink(path)


def count(path, counter, times):
    for _ in range(times):
        lock_id = acquire(path)
        with open(counter, encoding="utf-8") as file:
            value = int(file.read())
        time.sleep(random.random() / 1000)
        with open(counter, "w", encoding="utf-8") as file:
            file.write(str(value + 1))
        release(path, lock_id)


def hold(path):
    lock_id = acquire(path)
    print("held", flush=True)
    sys.stdin.read()
    release(path, lock_id)
    print("released", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "count":
        count(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        hold(sys.argv[2])
