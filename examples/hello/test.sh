#!/bin/sh
# Builds and tests the example, then tries what a hostile dependency could.
# Inside Stockade everything hostile is stopped and this exits with 0.
set -eu
cd "$(dirname "$0")"
mkdir -p build

echo "building hello.c"
cc -Wall -Werror -O2 -o build/hello hello.c
test "$(./build/hello)" = "hello, world"
test "$(./build/hello Debian)" = "hello, Debian"
echo "2 tests passed"

echo "attacking from inside the test run"
cc -Wall -Werror -O2 -o build/hostile hostile.c
if ./build/hostile; then
    echo "every attack was stopped"
else
    echo "attacks succeeded: this did not run inside Stockade"
    exit 1
fi
