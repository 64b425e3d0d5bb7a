#!/usr/bin/env bash
# Prints the binary's SBOM on standard output, as CycloneDX 1.6 in JSON: every crate that is linked into the binary for
# a target, with version, licence and checksum. Crates that are only used to build it (build scripts, macros) are left
# out.
#
#   scripts/sbom.sh TARGET
#
# Only cargo tree knows which crates of Cargo.lock the target and the features select. Names, versions, licences and
# checksums contain no character that JSON requires to be escaped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[ $# = 1 ] || { echo "usage: sbom.sh TARGET" >&2; exit 1; }

# One line for each crate, sorted: name, version, licence.
crates=$(cargo tree --locked --target "$1" --edges normal,no-proc-macro --prefix none \
  --format '{p}|{l}' | sed -E 's/^([^ ]+) v([^ |]+)[^|]*\|(.*)$/\1 \2 \3/; s/ \(\*\)$//' | LC_ALL=C sort -u)

awk -v crates="$crates" '
  $1 == "name" { gsub(/"/, "", $3); name = $3 }
  $1 == "version" { gsub(/"/, "", $3); version = $3 }
  $1 == "checksum" { gsub(/"/, "", $3); checksum[name " " version] = $3 }
  END {
    count = split(crates, lines, "\n")
    for (i = 1; i <= count; i++) {
      split(lines[i], part, " ")
      licence = substr(lines[i], length(part[1]) + length(part[2]) + 3)
      # Some crates still use the first syntax of the registry: a slash for OR.
      gsub(/ *\/ */, " OR ", licence)
      purl = "pkg:cargo/" part[1] "@" part[2]
      object = "{\"type\":\"" (part[1] == "leasehold" ? "application" : "library") "\",\"bom-ref\":\"" purl \
        "\",\"name\":\"" part[1] "\",\"version\":\"" part[2] "\""
      sum = checksum[part[1] " " part[2]]
      if (sum != "") object = object ",\"hashes\":[{\"alg\":\"SHA-256\",\"content\":\"" sum "\"}]"
      if (licence != "") object = object ",\"licenses\":[{\"expression\":\"" licence "\"}]"
      object = object ",\"purl\":\"" purl "\"}"
      if (part[1] == "leasehold") root = object
      else list = list (list == "" ? "" : ",\n  ") object
    }
    print "{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.6\",\"version\":1,"
    print " \"metadata\":{\"component\":" root "},"
    print " \"components\":[\n  " list "\n ]}"
  }' Cargo.lock
