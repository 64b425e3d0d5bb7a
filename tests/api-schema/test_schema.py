"""Sends requests to `leasehold dev` that its OpenAPI document allows, and requests that it does not.

A request that the document allows is not rejected as invalid, all other requests are, and the only
5xx is 503. Schemathesis generates the requests: each bound and each kind of violation (its coverage
phase), and then random ones from a fixed seed. run.sh runs this test.
"""

import os

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode

URL = os.environ["LEASEHOLD_URL"]
# The codes that reject a request as invalid. All other codes depend on the state of the server.
OF_THE_FORM = {
    "invalid_request",
    "resource_invalid",
    "election_invalid",
    "ttl_out_of_range",
    "body_too_large",
    "not_found",
    "method_not_allowed",
    # Invalid HTTP is rejected without a problem document.
    "unreadable",
}
# Limits in bytes. JSON Schema can only count characters.
BYTES = {"resource": 512, "ownerId": 256, "prefix": 512, "key": 63, "value": 256}

schema = schemathesis.openapi.from_url(f"{URL}/openapi.json")
schema.config.generation.update(modes=list(GenerationMode))
sent = {mode: 0 for mode in GenerationMode}


def is_too_long_in_bytes(case):
    """Whether only the length in bytes can be the reason for a rejection."""
    fields = case.body if isinstance(case.body, dict) else {}
    texts = [(name, fields.get(name)) for name in ("resource", "ownerId")]
    texts.append(("prefix", (case.query or {}).get("prefix")))
    metadata = fields.get("metadata")
    for key, value in (metadata if isinstance(metadata, dict) else {}).items():
        texts += [("key", key), ("value", value)]
    return any(isinstance(text, str) and len(text.encode()) > BYTES[name] for name, text in texts)


def is_allowed(case):
    return case.meta.generation.mode == GenerationMode.POSITIVE


def is_described(case):
    """Whether the document describes the violated part. It does not describe headers and cookies."""
    parts = case.meta.components.items()
    violated = {part.value for part, info in parts if info.mode == GenerationMode.NEGATIVE}
    return not violated or bool(violated - {"header", "cookie"})


def status_and_code(case):
    """Returns the status and the code of the answer.

    For a stream, only the head is read. An allowed wait without an answer counts as 200.
    """
    parts = case.as_transport_kwargs(base_url=URL)
    may_wait = case.operation.path == "/v1/locks/acquire" and is_allowed(case)
    try:
        with requests.request(**parts, stream=True, timeout=0.5 if may_wait else 30) as response:
            if response.status_code < 400:
                if case.operation.path == "/v1/locks/acquire":
                    requests.delete(f"{URL}/v1/locks/{response.json()['leaseId']}", timeout=5)
                return response.status_code, None
            document = response.json() if response.content else {}
            # The store rejects a continue token that it did not issue.
            if "the continue token expired" in document.get("detail", ""):
                return response.status_code, "listing_over"
            return response.status_code, document.get("code", "unreadable")
    except requests.exceptions.ReadTimeout:
        assert may_wait, "not answered"
        return 200, None


@schema.parametrize()
@settings(
    max_examples=int(os.environ["LEASEHOLD_EXAMPLES"]),
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_what_the_document_says_is_what_is_accepted(case):
    mode = case.meta.generation.mode
    if not is_allowed(case) and not is_described(case):
        return
    sent[mode] += 1
    status, code = status_and_code(case)
    told = f"{mode.name}: {case.as_curl_command()} {case.body!r}: {status} {code}"
    assert status < 500 or status == 503, told
    if is_allowed(case):
        assert code not in OF_THE_FORM or is_too_long_in_bytes(case), told
    else:
        assert code in OF_THE_FORM | {"listing_over"}, told


def test_both_kinds_were_sent():
    assert min(sent.values()) > 100, sent
