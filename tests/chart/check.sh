#!/usr/bin/env bash
# Tests the chart without a cluster, with Helm 4 and Helm 3. The chart passes lint, and renders the files in
# tests/golden/chart, with the same bytes each time. Objects name only the namespace of the release. Errors name the
# invalid value.
#
#   tests/chart/check.sh               compares
#   tests/chart/check.sh --regenerate  writes tests/golden/chart, with Helm 4
#
# tests/e2e/chart.rs installs the chart on an API server.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)
built=${CARGO_TARGET_DIR:-$repository/target}/controlplane
golden=$repository/tests/golden/chart
regenerate=${1:-}
# Isolates the checks from the user's Helm configuration as far as possible.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HELM_CONFIG_HOME=$scratch/config HELM_CACHE_HOME=$scratch/cache HELM_DATA_HOME=$scratch/data
export HELM_PLUGINS=$scratch/plugins
unset KUBECONFIG HELM_NAMESPACE

failures=0
fail() {
  printf 'FAILED (%s): %s\n' "$helm_name" "$*" >&2
  failures=$((failures + 1))
}

main() {
  cd "$repository"
  for helm_name in helm helm3; do
    helm=$built/$helm_name/helm
    [ -x "$helm" ] || { echo "$helm is missing: run tests/controlplane/build.sh helm helm3" >&2; exit 1; }
    if [ "$regenerate" = --regenerate ] && [ "$helm_name" = helm ]; then write_goldens; fi
    check_lint
    check_goldens
    check_namespace
    check_token_floor
    check_fenced_objects
    check_refusal_events
    check_images
    check_refused
  done
  [ "$failures" -eq 0 ] || { echo "the chart: $failures checks failed" >&2; exit 1; }
  echo "the chart: all checks passed, by Helm 4 and Helm 3"
}

render() { "$helm" template leasehold charts/leasehold --namespace leasehold-system --kube-version 1.36.0 "$@"; }

# Lint also validates the values against the schema.
check_lint() {
  local values
  for values in charts/leasehold/values.yaml examples/helm/ha.yaml; do
    "$helm" lint --strict charts/leasehold --values "$values" --kube-version 1.36.0 >"$scratch/lint" 2>&1 ||
      fail "lint with $values: $(cat "$scratch/lint")"
  done
}

# Leaves out text that is copied unchanged from charts/leasehold/files: e2e compares it, on an API server. Sorts the
# objects and drops empty lines, because the two Helm versions differ in both.
shortened() {
  awk '
    /^---/ { if (NR > 1) printf "\n"; long = 0; cut = 0 }
    /^kind: (CustomResourceDefinition|ValidatingAdmissionPolicy|PrometheusRule)$/ { long = 1 }
    cut || NF == 0 { next }
    { printf "%s\001", $0 }
    (long && /^spec:/) || /^  leasehold.json:/ { cut = 1; printf "    # (as under charts/leasehold/files)\001" }
    END { printf "\n" }
  ' | LC_ALL=C sort | tr -d '\n' | tr '\001' '\n'
}

write_goldens() {
  mkdir -p "$golden"
  render | shortened >"$golden/default.yaml"
  render --values examples/helm/ha.yaml | shortened >"$golden/ha.yaml"
}

check_goldens() {
  local name
  for name in default ha; do
    local values=charts/leasehold/values.yaml
    [ "$name" = default ] || values=examples/helm/$name.yaml
    render --values "$values" >"$scratch/first.yaml"
    render --values "$values" >"$scratch/second.yaml"
    cmp -s "$scratch/first.yaml" "$scratch/second.yaml" || fail "two renderings with $values differ"
    shortened <"$scratch/first.yaml" | diff -u "$golden/$name.yaml" - >"$scratch/diff" ||
      fail "tests/golden/chart/$name.yaml is not what the chart renders (make chart-golden):
$(head -40 "$scratch/diff")"
  done
}

# Rights and policies name the operator by its namespace. So every place must have the release's namespace.
check_namespace() {
  "$helm" template locks charts/leasehold --namespace elsewhere --kube-version 1.36.0 \
    --values examples/helm/ha.yaml --set operator.leaderLabels=true >"$scratch/elsewhere.yaml"
  if grep -n leasehold-system "$scratch/elsewhere.yaml" >"$scratch/named"; then
    fail "installed elsewhere it still names leasehold-system: $(head -5 "$scratch/named")"
  fi
  grep -q system:serviceaccount:elsewhere:leasehold-operator "$scratch/elsewhere.yaml" ||
    fail "the policies do not name the operator of the namespace elsewhere"
}

# The policies limit how far a token is above the agents' floor, so policies and agents need the same floor.
check_token_floor() {
  local policies
  render --set tokenFloor=9007199254739992 >"$scratch/floor.yaml"
  policies=$(grep -cF 'expression: "9007199254739992"' "$scratch/floor.yaml" || true)
  [ "$policies" = 3 ] || fail "tokenFloor is in $policies policies, not in 3"
  if render | grep -q leasehold-lock-token-floor; then fail "without a tokenFloor there is a policy about it"; fi
}

# The API server refuses all that the policy selects while the CRD of locks is missing. So it must select by the label.
check_fenced_objects() {
  local words
  if render | grep -q leasehold-fenced-objects; then fail "without fencedObjects there is a policy about them"; fi
  render --set admissionPolicy.fencedObjects=true |
    awk -v RS='---\n' '/name: leasehold-fenced-objects/' >"$scratch/fenced.yaml"
  for words in 'key: leasehold.dev/fenced-by' 'kind: DistributedLock' 'helm.sh/resource-policy: keep'; do
    grep -qF "$words" "$scratch/fenced.yaml" || fail "the policy about fenced objects has no $words"
  done
}

# The role that the operator binds has the right to create Events only on request.
check_refusal_events() {
  local words role='/kind: ClusterRole\n/ && /name: leasehold-sidecar\n/'
  if render | awk -v RS='---\n' "$role" | grep -q events; then fail "sidecars may create Events by default"; fi
  render --set sidecar.refusalEvents=true | awk -v RS='---\n' "$role" >"$scratch/role.yaml"
  # Values of an earlier version, which lack it.
  render --set sidecar.refusalEvents=null >"$scratch/role-unset.yaml" || fail "refusalEvents must be set"
  for words in locksessions/status events.k8s.io; do
    grep -qF "$words" "$scratch/role.yaml" || fail "the sidecar's role with refusalEvents lacks $words"
  done
}

# check_image IMAGE OF ARGUMENTS...: OF is `operator` or `sidecar`.
check_image() {
  local wanted=$1 of=$2 line
  shift 2
  case $of in
    operator) line="        image: $wanted" ;;
    sidecar) line="    image: $wanted" ;;
  esac
  render "$@" >"$scratch/image.yaml"
  grep -qxF -- "$line" "$scratch/image.yaml" || fail "the $of's image is not $wanted with: $*"
}

check_images() {
  local digest=sha256:0000000000000000000000000000000000000000000000000000000000000000
  local version
  version=$(sed -n 's/^appVersion: //p' charts/leasehold/Chart.yaml)
  for of in operator sidecar; do
    check_image "ghcr.io/leasehold/leasehold:$version" $of
    check_image ghcr.io/leasehold/leasehold:other $of --set image.tag=other
    check_image "ghcr.io/leasehold/leasehold@$digest" $of --set image.tag=other,image.digest=$digest
    check_image my.example/locks:other $of \
      --set image.tag=other,image.registry=my.example,image.repository=locks
    check_image "mirror.example/path/leasehold/leasehold:$version" $of \
      --set global.imageRegistry=mirror.example/path/
  done
  check_image ghcr.io/leasehold/leasehold:old sidecar --set sidecar.image.tag=old,image.digest=$digest
  check_image "ghcr.io/leasehold/leasehold@$digest" operator \
    --set sidecar.image.tag=old,image.digest=$digest
  check_image mirror.example/own:old sidecar \
    --set sidecar.image.repository=own,sidecar.image.registry=my.example,sidecar.image.tag=old \
    --set global.imageRegistry=mirror.example
}

check_refused() {
  local line arguments words
  while read -r line; do
    case $line in '' | '#'*) continue ;; esac
    words=${line#* => }
    read -ra arguments <<<"${line%% => *}"
    if render "${arguments[@]}" >"$scratch/out" 2>&1; then
      fail "not refused: ${arguments[*]}"
    elif ! grep -qF -- "$words" "$scratch/out"; then
      fail "${arguments[*]} is refused without the words: $words
$(cat "$scratch/out")"
    fi
  done <tests/chart/refused.txt
}

main
