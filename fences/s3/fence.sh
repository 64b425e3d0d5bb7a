#!/usr/bin/env bash
# Replaces the value of a guarded object in S3 (docs/fencing-s3.md), under `leasehold exec`: fence.sh URL VALUE
#
# It needs curl 7.88 or later and jq. It does not send AWS_SESSION_TOKEN.
set -euo pipefail
url=$1
value=$2
[[ $LEASEHOLD_TOKEN =~ ^[1-9][0-9]*$ ]] || { echo "LEASEHOLD_TOKEN is not a fencing token: '$LEASEHOLD_TOKEN'" >&2; exit 1; }
content=$(jq --null-input --compact-output --argjson token "$LEASEHOLD_TOKEN" --arg value "$value" '$ARGS.named')
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Prints the status and the ETag.
request() {
  curl --silent --show-error --max-time 60 --output "$answer" --write-out '%{http_code} %header{etag}\n' \
    --aws-sigv4 "aws:amz:$AWS_REGION:s3" \
    --config <(printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY") \
    --header 'x-amz-content-sha256: UNSIGNED-PAYLOAD' "$@" "$url"
}

for _ in {1..50}; do
  read -r status etag < <(request)
  if [ "$status" = 200 ]; then
    [ -n "$etag" ] || fail "the answer has no ETag, so no write could be conditional"
    newest=$(jq .token "$answer")
    condition="If-Match: $etag"
  elif grep -q '<Code>NoSuchKey</Code>' "$answer"; then
    newest=0
    condition='If-None-Match: *'
  else
    fail "the object cannot be read: $status $(cat "$answer")"
  fi
  [ "$LEASEHOLD_TOKEN" -ge "$newest" ] || fail "stale fencing token $LEASEHOLD_TOKEN for $url: the newest is $newest"

  read -r status etag < <(request --request PUT --header "$condition" --data-binary "$content")
  case $status in
    200) exit 0 ;;
    404 | 409 | 412) sleep "0.0$((RANDOM % 10))" ;; # Another write came first, which may have a newer token: read again.
    *) fail "the outcome of the write is unknown: $status $(cat "$answer")" ;;
  esac
done
fail "50 other writes to $url came first; nothing was written"
