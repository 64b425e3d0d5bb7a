"""Guards an object in S3 by the fencing token of a lock: docs/fencing-s3.md."""

import json
import random
import time

from botocore.exceptions import ClientError


ATTEMPTS = 50


class StaleToken(Exception):
    """The lock was granted again: stop working. This attempt wrote nothing; one before it, with an error, may have."""


def read(s3, bucket, key):
    """Returns the value, the token and the ETag of a guarded object."""
    try:
        answer = s3.get_object(Bucket=bucket, Key=key)
    except s3.exceptions.NoSuchKey:
        return None, 0, None
    content = json.loads(answer["Body"].read())
    return content["value"], content["token"], answer["ETag"]


def write(s3, bucket, key, token, change):
    """Replaces the value of a guarded object by `change(value)`.

    Other errors than `StaleToken` leave it open whether the value was written.
    """
    if type(token) is not int or not 1 <= token < 2**53:
        raise ValueError(f"{token!r} is not a fencing token; pass the fencingToken of your lease")
    for _ in range(ATTEMPTS):
        value, newest, etag = read(s3, bucket, key)
        if token < newest:
            raise StaleToken(f"stale fencing token {token} for {key}: the newest is {newest}")
        content = json.dumps({"token": token, "value": change(value)})
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=content, **condition)
            return
        except ClientError as error:
            # Another write came first, which may have a newer token: read again.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (404, 409, 412):
                raise
            time.sleep(random.uniform(0, 0.1))
    raise RuntimeError(f"{ATTEMPTS} other writes to {key} came first; nothing was written")
