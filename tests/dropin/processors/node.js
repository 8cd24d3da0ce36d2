// A record processor for the real aws-kcl: node node.js FOLDER v1|v2. Keeps a ledger where the environment names one,
// tells on stderr what it was told, checkpoints each batch.
'use strict';

const fs = require('fs');
const path = require('path');
const [folder, generation] = process.argv.slice(2);
const kcl = require(folder);

let ledger = null;
let shard = '';

function note(kind, records) {
  if (ledger !== null) {
    const now = Number(process.hrtime.bigint()) / 1e9;
    fs.writeSync(ledger, JSON.stringify([kind, now, shard, records || []]) + '\n');
  }
}

function tell(text) {
  fs.writeSync(2, text + '\n');
}

function checkpoint(checkpointer, done) {
  checkpointer.checkpoint(function (error) {
    if (error) {
      tell('told ' + error);
    }
    done(!error);
  });
}

const processor = {
  initialize: function (input, done) {
    shard = input.shardId;
    if (process.env.KCL_DEMO_LEDGER) {
      const name = [shard, process.pid, Date.now(), 'ledger'].join('.');
      ledger = fs.openSync(path.join(process.env.KCL_DEMO_LEDGER, name), 'wx');
    }
    note('start');
    done();
  },
  processRecords: function (input, done) {
    note('records', input.records.map((record) => [record.sequenceNumber, {}]));
    for (const record of input.records) {
      const length = Buffer.from(record.data, 'base64').length;
      const key = JSON.stringify(record.partitionKey).replace(/[^ -~]/g, '?');
      tell(['record', key, length, record.subSequenceNumber].join(' '));
    }
    checkpoint(input.checkpointer, function (good) {
      if (good) {
        note('checkpoint');
      }
      done();
    });
  },
  shutdownRequested: function (input, done) {
    note('stopping');
    checkpoint(input.checkpointer, () => done());
  },
};

function ended(input, done) {
  note('ended');
  checkpoint(input.checkpointer, () => done());
}

function lost(input, done) {
  note('lost');
  done();
}

if (generation === 'v1') {
  processor.shutdown = function (input, done) {
    (input.reason === 'TERMINATE' ? ended : lost)(input, done);
  };
} else {
  processor.shardEnded = ended;
  processor.leaseLost = lost;
}

kcl(processor).run();
