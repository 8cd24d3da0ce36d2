#!/bin/sh
# Gives the lines of records.txt to the processor as the daemon does, and looks at what it wrote. Needs no stream.
set -eu
cd "$(dirname "$0")"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
@{build_lines}kcl-daemon run-child --records records.txt -- @{command} "$out"
written=$out/shardId-000000000000.jsonl
test "$(wc -l <"$written")" -eq "$(wc -l <records.txt)"
grep -q 'two apples' "$written"
echo 'passed'
