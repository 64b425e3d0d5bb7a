#!/usr/bin/env bash
# Builds the image that the node's pods run: busybox for a shell, and this machine's curl with its
# libraries. Nothing is downloaded. Its default command sleeps, so it is the pods' sandbox image,
# too. It also replaces the images of the examples: curl's, and agnhost with its commands `netexec`
# and `pause`.
#
#   tests/node/app-image.sh FILE      an OCI archive, named registry.test/app:1
set -euo pipefail

readonly NAME=registry.test/app:1

main() {
  local file=$1
  # Not a local variable: the trap outlives this function.
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/root"/{bin,tmp}
  chmod 1777 "$work/root/tmp"
  cp "$(busybox_static)" "$work/root/bin/busybox"
  local applet
  for applet in $("$work/root/bin/busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$work/root/bin/$applet"
  done
  add_program curl "$work/root"
  printf '#!/bin/sh\nmkdir -p /tmp/www; echo ok >/tmp/www/healthz; hostname >/tmp/www/hostname\nexec httpd -f -p 8080 -h /tmp/www\n' \
    >"$work/root/bin/netexec"
  printf '#!/bin/sh\nexec sleep infinity\n' >"$work/root/bin/pause"
  chmod 755 "$work/root/bin/netexec" "$work/root/bin/pause"
  pack "$work" "$file"
}

busybox_static() {
  local path
  path=$(command -v busybox) || { echo "busybox is missing (Debian: busybox-static)" >&2; exit 1; }
  if ldd "$path" >/dev/null 2>&1; then
    echo "$path is not static (Debian: busybox-static)" >&2
    exit 1
  fi
  echo "$path"
}

# Adds a program and the libraries that it loads, at the paths where it searches for them.
add_program() {
  local program=$1 root=$2 library
  cp "$(command -v "$program")" "$root/bin/"
  ldd "$(command -v "$program")" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
  done
}

pack() {
  local work=$1 file=$2
  # A separate storage, so that the user's images stay untouched.
  local buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
  printf 'FROM scratch\nCOPY root /\nENV PATH=/bin\nUSER 1000:1000\nCMD ["/bin/sleep","infinity"]\n' \
    >"$work/Dockerfile"
  "${buildah[@]}" build --quiet --isolation chroot --format oci --tag "$NAME" \
    --file "$work/Dockerfile" "$work" >/dev/null
  "${buildah[@]}" push --quiet "$NAME" "oci-archive:$work/app.tar:$NAME"
  mkdir -p "$(dirname "$file")"
  mv "$work/app.tar" "$file"
}

main "$@"
