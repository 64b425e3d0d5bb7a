#!/usr/bin/env bash
# Checks the package's format, rules and types, builds it, and runs its tests: check.sh <directory>
#
# <directory>/lib has the jars, and <directory>/programs has the driver and the examples as classes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)

command -v mvn >/dev/null && javac -version 2>&1 | grep -qE '^javac (1[7-9]|[2-9][0-9])' || {
  echo "Maven and a JDK of version 17 or later are missing (Debian: apt-get install maven openjdk-17-jdk-headless)" >&2
  exit 1
}

cd "$here"
inputs() {
  find . -type f -not -name '*.md' -not -path '*/target/*' -print0 | sort -z | xargs -0 sha256sum
  javac -version 2>&1
}
inputs >"$work/inputs.now"
cmp -s "$work/inputs.now" "$work/inputs" && exit
rm -f "$work/inputs"
version=$(sed -n 's|^  <version>\(.*\)</version>|\1|p' pom.xml)
grep -q "VERSION = \"$version\"" src/main/java/dev/leasehold/Version.java || {
  echo "Version.java and pom.xml have different versions" >&2
  exit 1
}
rm -f "$work"/build/*.jar
# One run builds the library and its user outside the checkout.
rm -rf "$work/both"
mkdir "$work/both"
cp -r .mvn spring-example "$work/both"
cat >"$work/both/pom.xml" <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>dev.leasehold</groupId>
  <artifactId>check</artifactId>
  <version>$version</version>
  <packaging>pom</packaging>
  <modules>
    <module>$(realpath --relative-to="$work/both" "$here")</module>
    <module>spring-example</module>
  </modules>
</project>
END
mvn --file "$work/both" --activate-profiles check --batch-mode --quiet --no-transfer-progress -Dstyle.color=never -DbuildDirectory="$work/build" verify
# As a user gets it: the jar and what it depends on.
rm -rf "$work/lib" "$work/programs"
mkdir "$work/lib"
cp "$work"/build/leasehold-client-*.jar "$work"/build/dependency/*.jar "$work/lib"
javac --release 17 -Xlint:all,-try -Werror -d "$work/programs" -cp "$work/lib/*" conformance/*.java examples/*.java
javadoc -quiet -Xdoclint:all -Werror -d "$work/javadoc" --module-path "$work/lib:$work/build/provided" \
  --source-path src/main/java --module dev.leasehold >/dev/null
# This comes last: an incomplete build is repeated.
mv "$work/inputs.now" "$work/inputs"
