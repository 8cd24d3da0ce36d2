// Handlers as they are written for AWS Lambda; what they see they write down beside themselves. As lambda_handlers.py.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

console.log('Loading function');

const FOLDER = process.env.LAMBDA_TASK_ROOT;
const texts = (event) => event.Records.map((each) => Buffer.from(each.kinesis.data, 'base64').toString());
const write = (file, value) => fs.appendFileSync(path.join(FOLDER, file), JSON.stringify(value) + '\n');

function note(event, more) {
  const shardId = event.Records.length ? event.Records[0].eventID.split(':')[0] : event.shardId;
  write(`${shardId}.jsonl`, { event, ...more });
}

exports.seen = async (event, context) => {
  const variables = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => /^(AWS_|LAMBDA_|_HANDLER|TZ)/.test(name)),
  );
  const known = {
    function_name: context.functionName,
    function_version: context.functionVersion,
    invoked_function_arn: context.invokedFunctionArn,
    memory_limit_in_mb: context.memoryLimitInMB,
    log_group_name: context.logGroupName,
  };
  note(event, { context: known, variables, left_ms: context.getRemainingTimeInMillis() });
  process.stdout.write(`seen ${event.Records.length}\n`);
  return `Successfully processed ${event.Records.length} records.`;
};

exports.partial = async (event) => {
  note(event, {});
  const bad = event.Records.filter((_, index) => texts(event)[index].startsWith('poison'));
  return { batchItemFailures: bad.map((each) => ({ itemIdentifier: each.kinesis.sequenceNumber })) };
};

// As AWS's documentation has it: the first failure ends the batch.
exports.first = async (event) => {
  for (const [index, { kinesis }] of event.Records.entries()) {
    try {
      if (texts(event)[index].startsWith('poison')) throw new Error('cannot read it');
      fs.appendFileSync(path.join(FOLDER, 'processed.txt'), `${kinesis.sequenceNumber}\n`);
    } catch {
      return { batchItemFailures: [{ itemIdentifier: kinesis.sequenceNumber }] };
    }
  }
  return { batchItemFailures: [] };
};

exports.raising = async (event) => {
  note(event, {});
  for (const text of texts(event)) if (text.startsWith('poison')) throw new Error(`cannot read '${text}'`);
};

exports.window = async (event) => {
  note(event, {});
  const { state } = event;
  return {
    state: {
      count: (state.count ?? 0) + event.Records.length,
      text: (state.text ?? '') + texts(event).join(''),
    },
  };
};

exports.changes = async (event) => event.Records.forEach((each) => write('changes.jsonl', each));

// The other ways in which a handler may end.
const later = (act) => setTimeout(act, 20);
exports.callback = (event, context, callback) => callback(null, 'done');
exports.callbackLater = (event, context, callback) => void later(() => callback(null, 'done'));
exports.callbackFirst = (event, context, callback) => {
  later(() => note(event, { last: true }));
  callback(null, 'done');
};
exports.callbackAtOnce = (event, context, callback) => {
  context.callbackWaitsForEmptyEventLoop = false;
  setTimeout(() => {}, 1e9);
  callback(null, 'done');
};
exports.done = (event, context) => context.done(null, 'done');
exports.succeed = (event, context) => void later(() => context.succeed('done'));
exports.nothing = (event) => void later(() => note(event, { last: true }));
exports.inside = { handler: async () => undefined };
exports.callbackFails = (event, context, callback) => callback(new Error('as told'));
exports.fails = (event, context) => context.fail('as told');
exports.throws = () => {
  throw new Error('as told');
};
exports.never = async () => {
  console.log('as told');
  await new Promise(() => {});
};
