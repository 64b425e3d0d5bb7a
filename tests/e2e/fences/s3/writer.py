"""Appends to the log in one object by the users' recipe, one line of the input after the other: TOKEN VALUE SECONDS.

It prints `accepted` or `stale`. Every other error ends it: then the outcome is unknown.
"""

import sys
import time

import boto3
import fence
from botocore.config import Config

_, bucket, key, mode = sys.argv
s3 = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
for line in sys.stdin:
    token, value, pause = line.split()

    pauses = [float(pause)]

    def append(log):
        if pauses:
            time.sleep(pauses.pop())
        return [*(log or []), [int(token), value]]

    # The control passes with every token.
    shown = 2**53 - 1 if mode == "unfenced" else int(token)
    try:
        fence.write(s3, bucket, key, shown, append)
        print("accepted", flush=True)
    except fence.StaleToken:
        print("stale", flush=True)
