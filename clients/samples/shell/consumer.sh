#!/bin/sh
# A record processor in POSIX shell with jq: appends each record to DIRECTORY/SHARD.jsonl.
#
#     executableName = sh consumer.sh DIRECTORY
#
# The daemon writes one JSON object a line to stdin. jq makes short lines of them that `read` can take: `record JSON` for
# each record, `action NAME VALUE` for each message. Only messages may go to stdout; stderr goes to the daemon's log.
set -eu
directory=${1:?"usage: consumer.sh DIRECTORY"}
mkdir -p "$directory"
tab=$(printf '\t')

short_lines() {
    jq --unbuffered --raw-output '
        (.records // [] | .[] | "record\t" + ({
            sequenceNumber, subSequenceNumber, partitionKey, text: (.data | if . == "" then . else @base64d end)
        } | tojson)),
        "action\t\(.action)\t\(.shardId // .error // "")"'
}

say() { printf '%s\n' "$1"; }

# Everything delivered so far is done. The answer is always the next line.
checkpoint() {
    for pause in 1 2 4 8 0; do
        say '{"action":"checkpoint","sequenceNumber":null,"subSequenceNumber":null}'
        IFS=$tab read -r _ _ error
        case $error in
        '') return ;;
        # Another attempt may succeed: DynamoDB throttled the write or did not answer.
        ThrottlingException | KinesisClientLibDependencyException) ;;
        # ShutdownException: another worker has the shard, leaseLost follows.
        *) break ;;
        esac
        sleep "$pause"
    done
    # Given up: records are repeated, none is lost.
    printf 'checkpoint: %s\n' "$error" >&2
}

# With `set -e` whatever fails ends the process without the status: another child gets the records again.
short_lines | while IFS=$tab read -r kind value more; do
    case "$kind $value" in
    record*)
        printf '%s\n' "$value" >>"$file"
        continue
        ;;
    'action initialize') file=$directory/$more.jsonl ;;
    # The last chance; at the end of a shard it is a must, or the shards after it never start.
    'action processRecords' | 'action shutdownRequested' | 'action shardEnded') checkpoint ;;
    # Another worker has the shard: no checkpoint is possible any more.
    'action leaseLost') ;;
    esac
    say "{\"action\":\"status\",\"responseFor\":\"$value\"}"
done
