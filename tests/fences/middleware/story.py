"""Writes to a guarded service as two holders of a lock: story.py NAME URL READ

READ is a command that prints what the service guards. The first holder is paused in the middle of
its request, after the filter has passed its token: only the fence in the store can refuse it.
"""

import http.client
import json
import subprocess
import sys
import urllib.parse

NAME, URL, READ = sys.argv[1:]
ADDRESS = urllib.parse.urlsplit(URL)
OLD, NEW = "1842000", "1843000"


class Writer:
    """A request whose body can be sent later than its head."""

    def __init__(self, path, *tokens, method="PUT", body="text"):
        self.body = body.encode()
        self.connection = http.client.HTTPConnection(ADDRESS.hostname, ADDRESS.port, timeout=30)
        self.connection.putrequest(method, path)
        self.connection.putheader("Content-Type", "text/plain")
        self.connection.putheader("Content-Length", str(len(self.body)))
        for token in tokens:
            self.connection.putheader("X-Fencing-Token", token)
        self.connection.endheaders()

    def finish(self):
        """Sends the body, and returns the status and the problem document."""
        self.connection.send(self.body)
        response = self.connection.getresponse()
        text = response.read()
        self.connection.close()
        if response.getheader("Content-Type") != "application/problem+json":
            return response.status, None
        document = json.loads(text)
        assert document["status"] == response.status, document
        return response.status, document


def send(path, *tokens, **options):
    return Writer(path, *tokens, **options).finish()


def guarded():
    return subprocess.run(
        READ, shell=True, check=True, capture_output=True, text=True
    ).stdout.strip()


def written(answer):
    assert answer[0] in (200, 204), f"a write failed: {answer}"


def refused(answer, status, code):
    assert answer[0] == status and answer[1]["code"] == code, f"wanted {status} {code}: {answer}"


def paused(path):
    """Plays the story, and returns what the paused holder receives."""
    written(send(path, OLD, body="before"))
    holder = Writer(path, OLD, body="old")
    written(send(path, NEW, body="new"))
    return holder.finish()


# The control, while the fence knows no token: without the fence, the paused holder overwrites what is newer.
written(paused("/unfenced"))
assert guarded() == "old", guarded()

stale = paused("/report")
refused(stale, 412, "stale_token")
assert "tale" in stale[1]["detail"].partition("answer: ")[2], stale
assert guarded() == "new", guarded()

written(send("/report", NEW, body="again"))
written(send("/report", f" {NEW} ", body="spaces around"))
refused(send("/report"), 428, "token_required")
refused(send("/report", NEW, NEW), 400, "token_invalid")
for invalid in ("", "0", "-1", "+1", "01", "1e3", "5,6", "5 6", "9007199254740992", "9" * 4000):
    refused(send("/report", invalid), 400, "token_invalid")
# An error of the store other than a refusal.
failed, document = send("/forgotten", NEW)
assert failed == 500 and document is None, (failed, document)
assert send("/report", method="OPTIONS")[0] not in (400, 428)
assert guarded() == "spaces around", guarded()
print(f"{NAME}: the paused holder received {stale[1]['detail']}")
