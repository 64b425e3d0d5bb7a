"""A long poll with an unmodified Python `requests`.

    python3 client.py URL_OF_A [URL_OF_B] [--hold SECONDS] [--wait SECONDS]

Two workers want one lock. A holds it; B is queued, and gets the lock when A releases it. Then A is
queued, and cancels its request before it gets the lock. The URLs are those of the workers' sidecars,
or of one sidecar for both. Exits with 0 on success, otherwise prints the error and exits with 1.
"""

import argparse
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import requests


class LockHeld(Exception):
    """Another holder has the lock; the message names it."""


class LeaseLost(Exception):
    """The lease is over: stop what the lock guards."""


class Worker:
    """An app with a sidecar."""

    def __init__(self, name, url):
        self.name = name
        self.url = url
        self.http = requests.Session()

    def acquire(self, resource, wait_seconds=0, timeout=None):
        body = {
            "resource": resource,
            "ownerId": self.name,
            "ttlSeconds": 30,
            "waitSeconds": wait_seconds,
        }
        sent = time.monotonic()
        answer = self.http.post(f"{self.url}/v1/locks/acquire", json=body, timeout=timeout)
        if answer.status_code == 409 and answer.json()["code"] == "lock_held":
            raise LockHeld(answer.json()["detail"])
        answer.raise_for_status()
        return Lease(self, answer, sent)

    def queue_length(self, resource):
        answer = self.http.get(f"{self.url}/v1/locks", params={"prefix": resource})
        answer.raise_for_status()
        return answer.json()["locks"][0]["queueLength"]


class Lease:
    """A lock that a worker holds until `valid_until`."""

    def __init__(self, worker, answer, sent):
        lease = answer.json()
        self.worker = worker
        self.url = f"{worker.url}/v1/locks/{lease['leaseId']}"
        self.acquired = lease["acquired"]
        self.token = lease["fencingToken"]
        self.token_header = answer.headers["X-Fencing-Token"]
        self.note(lease, sent)

    def note(self, lease, sent):
        # Both times count from when the request was sent, even if the answer was slow.
        self.valid_until = sent + lease["validForMs"] / 1000
        self.renew_at = sent + lease["renewAfterMs"] / 1000

    def is_valid(self):
        return time.monotonic() < self.valid_until

    def renew(self):
        sent = time.monotonic()
        answer = self.worker.http.post(f"{self.url}/renew")
        if answer.status_code in (404, 410):
            raise LeaseLost(answer.json()["detail"])
        answer.raise_for_status()
        self.note(answer.json(), sent)

    def hold(self, seconds):
        """Simulates work for some seconds, and renews at `renew_at`."""
        end = time.monotonic() + seconds
        while self.renew_at < end:
            time.sleep(max(0, self.renew_at - time.monotonic()))
            self.renew()
        time.sleep(max(0, end - time.monotonic()))
        check(self.is_valid(), f"{self.worker.name} lost the lock while it renewed it")

    def release(self):
        answer = self.worker.http.delete(self.url)
        answer.raise_for_status()
        check(answer.status_code in (202, 204), f"a release is answered by {answer.status_code}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("url", nargs="+", help="of A's and B's sidecars, or of one for both")
    arguments.add_argument("--hold", type=float, default=12, help="how long A holds the lock")
    arguments.add_argument("--wait", type=int, default=100, help="how long B waits at most")
    arguments = arguments.parse_args()
    a = Worker("python-a", arguments.url[0])
    b = Worker("python-b", arguments.url[-1])
    resource = f"clients:python:{uuid.uuid4()}"
    with ThreadPoolExecutor() as threads:
        lease = wait_in_line(a, b, resource, arguments, threads)
        go_away_from_the_line(a, resource, lease, threads)
    release_and_be_told(a, resource, lease)
    print("passed")


def wait_in_line(a, b, resource, arguments, threads):
    """B's long poll is answered when A releases. Returns B's lease."""
    first = a.acquire(resource)
    check(first.acquired is True, "A's answer has acquired: " + str(first.acquired))
    say(f"A has the lock with token {first.token}")
    for seconds in (0, 2):
        try:
            b.acquire(resource, wait_seconds=seconds)
            check(False, "B was granted a lock that A has")
        except LockHeld as refused:
            say(f"B waits for {seconds} s and is refused: {refused}")

    sent = time.monotonic()
    waiting = threads.submit(b.acquire, resource, wait_seconds=arguments.wait)
    first.hold(arguments.hold)
    if waiting.done():
        check(False, f"B was answered while A held the lock: {waiting.exception()}")
    first.release()
    second = waiting.result(timeout=10)
    waited = time.monotonic() - sent

    say(f"B has the lock with token {second.token}, after {waited:.2f} s")
    check(second.acquired is True, "B's answer has acquired: " + str(second.acquired))
    check(second.token > first.token, f"token {second.token} came after {first.token}")
    check(second.token_header == str(second.token), "X-Fencing-Token is another token")
    check(second.is_valid(), "B's lease was over when its answer arrived")
    second.renew()
    check(second.is_valid(), "B's lease was over when it was renewed")
    return second


def go_away_from_the_line(a, resource, lease, threads):
    """A cancels its long poll by the timeout of `requests`, and its queue entry is removed."""
    observer = Worker("python-observer", a.url)
    # The list can be slightly stale, and may still show the entry that B had before it got the lock.
    wait_until("the queue is empty", lambda: observer.queue_length(resource) == 0)
    waiting = threads.submit(a.acquire, resource, wait_seconds=100, timeout=(3.05, 5))
    wait_until("A is queued", lambda: observer.queue_length(resource) == 1)
    try:
        waiting.result()
        check(False, "A was granted a lock that B has")
    except requests.exceptions.ReadTimeout:
        say("A cancelled its request")
    wait_until("A's queue entry is removed", lambda: observer.queue_length(resource) == 0)
    check(lease.is_valid(), "B lost its lease meanwhile")


def release_and_be_told(a, resource, lease):
    """A caller that cancelled does not keep the lock: the next caller gets it."""
    lease.release()
    try:
        lease.renew()
        check(False, "a released lease was renewed")
    except LeaseLost as lost:
        say(f"B's renewal fails: {lost}")
    # The release can arrive before A's entry is removed. The agent then releases that grant immediately, so wait.
    last = a.acquire(resource, wait_seconds=10)
    say(f"A has the lock with token {last.token}")
    check(last.token > lease.token, f"token {last.token} came after {lease.token}")
    last.release()


def wait_until(what, is_so):
    end = time.monotonic() + 10
    while not is_so():
        check(time.monotonic() < end, f"timed out waiting until {what}")
        time.sleep(0.05)


def say(words):
    print(words, flush=True)


def check(is_so, words):
    if not is_so:
        raise AssertionError(words)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"client.py failed: {type(error).__name__}: {error}")
