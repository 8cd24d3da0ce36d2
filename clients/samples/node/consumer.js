// A record processor in plain Node: appends each record to DIRECTORY/SHARD.jsonl and counts its words.
//
//     executableName = node consumer.js DIRECTORY
//
// The daemon starts one of these for each shard, writes messages to its stdin, one JSON object a line, and reads its
// stdout. So only messages may go there: log with console.error.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

// Another attempt may succeed: DynamoDB throttled the write or did not answer.
const PASSING = ['ThrottlingException', 'KinesisClientLibDependencyException'];
const PAUSES_MS = [200, 400, 800, 1600, 3200];

const directory = process.argv[2] || '.';
const lines = readline.createInterface({ input: process.stdin, crlfDelay: Infinity })[Symbol.asyncIterator]();
let file; // of this shard
let words = 0;

// The next message, undefined when the daemon has gone. Lines can be 14 MB long, which readline takes.
async function receive() {
  const { value, done } = await lines.next();
  return done ? undefined : JSON.parse(value);
}

// Synchronous, so that nothing is lost where the process ends.
function send(message) {
  let left = Buffer.from(JSON.stringify(message) + '\n');
  while (left.length) left = left.subarray(fs.writeSync(1, left));
}

// Everything delivered so far is done. The answer is always the next line.
async function checkpoint() {
  for (const pause of [...PAUSES_MS, null]) {
    send({ action: 'checkpoint', sequenceNumber: null, subSequenceNumber: null });
    const answer = await receive();
    if (!answer || !answer.error) return;
    console.error(`checkpoint: ${answer.error}`);
    // Given up: records are repeated, none is lost. ShutdownException: another worker has the shard, leaseLost follows.
    if (!PASSING.includes(answer.error) || pause === null) return;
    await sleep(pause);
  }
}

function append(record) {
  const text = Buffer.from(record.data, 'base64').toString();
  words += text.split(/\s+/).filter(Boolean).length;
  const { partitionKey, sequenceNumber, subSequenceNumber } = record;
  fs.writeSync(file, JSON.stringify({ sequenceNumber, subSequenceNumber, partitionKey, text }) + '\n');
}

const actions = {
  initialize({ shardId, sequenceNumber }) {
    fs.mkdirSync(directory, { recursive: true });
    file = fs.openSync(path.join(directory, `${shardId}.jsonl`), 'a');
    console.error(`${shardId} starts after ${sequenceNumber}`);
  },
  async processRecords({ records, millisBehindLatest }) {
    records.forEach(append);
    fs.fsyncSync(file); // what is checkpointed must be safe
    console.error(`${words} words, ${millisBehindLatest} ms behind`);
    await checkpoint();
  },
  // The worker stops, or hands the shard over: the last chance to checkpoint.
  shutdownRequested: checkpoint,
  // Everything of this shard has been delivered: it must be checkpointed, or the shards after it never start.
  shardEnded: checkpoint,
  // Another worker has the shard: no checkpoint is possible any more.
  leaseLost() {},
};

async function main() {
  for (let message = await receive(); message; message = await receive()) {
    const act = actions[message.action];
    if (!act) throw new Error(`unknown action ${message.action}`);
    // An exception ends the process without the status: nothing is skipped, another child gets the records again.
    await act(message);
    send({ action: 'status', responseFor: message.action });
  }
}

main();
