// Runs a Node handler written for AWS Lambda, unchanged. One file, no packages, Node 18.
//
//     executableName = node kcl_lambda.js app.handler
//
// docs/lambda.md says what is as in Lambda and what is not. The daemon starts one of these for each shard and talks with it
// over stdin and stdout (docs/protocol.md); what handlers write to stdout goes to stderr, and from there to the daemon's log.
'use strict';

const { randomBytes, randomUUID } = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const { pathToFileURL } = require('node:url');
const { parseArgs } = require('node:util');

const EXIT_NO_HANDLER = 2;
const EXIT_HANDLER_FAILED = 70; // as kcl_client
const ACTIONS = ['initialize', 'processRecords', 'shutdownRequested', 'leaseLost', 'shardEnded'];
const WINDOW_MOST_S = 900;
const STATE_MOST_BYTES = 1024 * 1024;
const SETTLED_MS = 7000; // clocks differ, and a record may be seen a little after it arrived
const QUIET_MS = 1000;
const PATIENCE_MS = 120000; // where it is not known whether more records are there
const ARN = /^arn:[a-z-]+:(kinesis|dynamodb):[a-z0-9-]+:[0-9]{12}:(stream|table)\/.+$/;
// Another attempt may succeed: DynamoDB throttled the write or did not answer.
const PASSING = ['ThrottlingException', 'KinesisClientLibDependencyException'];
const PAUSES_MS = [500, 1000, 2000, 4000];
const ATTEMPT_PAUSE_MOST_MS = 15000; // below the daemon's shutdownGraceMillis
const NAMED = 'named in batchItemFailures';

class NoHandler extends Error {} // nothing can be run
class LeaseLost extends Error {} // no failure: leaseLost follows

// --- The line protocol -----------------------------------------------------------------------------------------------

const lines = [];
let rest = []; // pieces of a line
let ended = false;
let wake = () => {};

function listen() {
  process.stdin.on('data', (piece) => {
    let begin = 0;
    for (let end = piece.indexOf(10); end !== -1; end = piece.indexOf(10, begin)) {
      lines.push(Buffer.concat([...rest, piece.subarray(begin, end)]));
      rest = [];
      begin = end + 1;
    }
    if (begin < piece.length) rest.push(piece.subarray(begin));
    wake();
  });
  const end = () => {
    ended = true;
    wake();
  };
  process.stdin.on('end', end).on('error', end);
}

// The next message, undefined when the daemon has gone. Only here stdin keeps the event loop alive.
async function receive() {
  process.stdin.ref?.();
  while (!lines.length && !ended) await new Promise((resolve) => (wake = resolve));
  process.stdin.unref?.();
  return lines.length ? JSON.parse(lines.shift().toString()) : undefined;
}

// Synchronous, so that nothing is lost where the process ends.
function send(message) {
  let left = Buffer.from(JSON.stringify(message) + '\n');
  while (left.length) {
    try {
      left = left.subarray(fs.writeSync(1, left));
    } catch (error) {
      if (error.code === 'EPIPE') return; // the daemon has gone, and stdin ends
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

async function answer() {
  const message = await receive();
  if (!message) throw new LeaseLost('the daemon has gone');
  if (message.error === 'ShutdownException') throw new LeaseLost(message.error);
  return message;
}

// Up to a record, or everything delivered so far.
async function checkpoint({ sequenceNumber = null, subSequenceNumber = null } = {}) {
  for (const pause of [...PAUSES_MS, null]) {
    send({ action: 'checkpoint', sequenceNumber, subSequenceNumber });
    const { error } = await answer();
    if (!error) return;
    if (!PASSING.includes(error) || pause === null) throw new Error(`checkpoint: ${error}`);
    await sleep(pause);
  }
}

async function reject(records) {
  if (!records.length) return;
  if (!process.env.KCL_REJECTS) throw new Error('this daemon takes no rejects');
  for (const { sequenceNumber, subSequenceNumber } of records)
    send({ action: 'reject', sequenceNumber, subSequenceNumber, reason: NAMED });
  let refusal;
  for (const record of records) {
    const { error, message } = await answer();
    if (error) refusal ??= new Error(`record ${record.sequenceNumber}: ${message || error}`);
  }
  if (refusal) throw refusal;
}

// --- Events ----------------------------------------------------------------------------------------------------------

class Source {
  constructor(arn, functionName) {
    if (!ARN.test(arn)) throw new NoHandler(`not the ARN of a stream of Kinesis or DynamoDB: ${arn}`);
    const [, partition, service, region, account] = arn.split(':');
    Object.assign(this, { arn, functionName, region, isOfDynamoDB: service === 'dynamodb' });
    this.functionArn = `arn:${partition}:lambda:${region}:${account}:function:${functionName}`;
    this.roleArn = `arn:${partition}:iam::${account}:role/${functionName}`; // nobody knows the role
  }

  static of(env, functionName, arn) {
    const region = env.AWS_REGION || env.AWS_DEFAULT_REGION || 'us-east-1';
    const madeUp = `arn:aws:kinesis:${region}:000000000000:stream/${env.KCL_STREAM_NAME || 'stream'}`;
    return new Source(arn || env.KCL_STREAM_ARN || madeUp, functionName);
  }
}

const arrivalOf = (record, now) => record.approximateArrivalTimestamp ?? now;

function eventOf(records, source, shardId, now) {
  if (source.isOfDynamoDB) return { Records: records.map(changeOf) };
  return {
    Records: records.map((record) => ({
      kinesis: {
        kinesisSchemaVersion: '1.0',
        partitionKey: record.partitionKey,
        sequenceNumber: record.sequenceNumber,
        data: record.data,
        approximateArrivalTimestamp: arrivalOf(record, now) / 1000,
      },
      eventSource: 'aws:kinesis',
      eventVersion: '1.0',
      eventID: `${shardId}:${record.sequenceNumber}`,
      eventName: 'aws:kinesis:record',
      invokeIdentityArn: source.roleArn,
      awsRegion: source.region,
      eventSourceARN: source.arn,
    })),
  };
}

function changeOf({ data, sequenceNumber }) {
  try {
    const change = JSON.parse(Buffer.from(data, 'base64').toString());
    if (change.eventSourceARN) return change;
  } catch {
    // said below
  }
  const advice = "set childRecordFormat = lambda in the daemon's properties";
  throw new Error(`record ${sequenceNumber} is not a change in the form of Lambda; ${advice}`);
}

// What each identifier in an answer names, lowest first; all else that an answer may be is no failure of single records.
function failedOf(result, records) {
  const items = result?.batchItemFailures ?? [];
  if (!Array.isArray(items)) throw new Error(`batchItemFailures must be a list: ${JSON.stringify(items)}`);
  const named = new Set(items.map((item) => item?.itemIdentifier));
  const found = new Map();
  for (const record of records)
    for (const name of [record.sequenceNumber, `${record.sequenceNumber}:${record.subSequenceNumber ?? 0}`])
      if (named.has(name)) found.set(name, found.get(name) ?? []).get(name).push(record);
  const unknown = [...named].filter((name) => !found.has(name));
  if (unknown.length) throw new Error(`batchItemFailures names what is not in the batch: ${JSON.stringify(unknown)}`);
  return [...found.values()];
}

// Counts the attempts of a shard's lowest failed record. As in Lambda, all from that one on come again.
class Redelivery {
  constructor({ attempts, rejectNamed }) {
    Object.assign(this, { most: attempts, isExact: rejectNamed, lowest: null, attempts: 0, pauseMs: PAUSES_MS[0] });
  }

  // What to do, in this order: checkpoint `before`, fail, give up `rejected`, and after `pauseMs` deliver `again`.
  after([group, ...groups], records) {
    if (!group) {
      this.lowest = null;
      return { rejected: [], again: [] };
    }
    const index = records.indexOf(group[0]);
    const before = records[index - 1];
    if (this.isExact) return { before, rejected: [...new Set([group, ...groups].flat())], again: [] };
    if (index || this.lowest === null) this.pauseMs = PAUSES_MS[0]; // something was done
    const { sequenceNumber, subSequenceNumber } = group[0];
    const position = `${sequenceNumber}:${subSequenceNumber ?? 0}`;
    if (position !== this.lowest) Object.assign(this, { lowest: position, attempts: 0 });
    this.attempts += 1;
    if (this.attempts === this.most) return { before, rejected: group, again: records.slice(index + group.length) };
    const pauseMs = this.pauseMs;
    this.pauseMs = Math.min(pauseMs * 2, ATTEMPT_PAUSE_MOST_MS);
    const error = this.most ? null : new Error(`record ${position} is ${NAMED}`);
    return { before, error, rejected: [], again: records.slice(index), pauseMs };
  }
}

function windowAt(moment, lengthS) {
  const startS = Math.floor(moment / 1000 / lengthS) * lengthS;
  return { startS, endS: startS + lengthS };
}

// Whether no record of it can come any more, as an empty batch says.
function isOver(window, now, behind) {
  const late = now - window.endS * 1000;
  return behind === 0 ? late >= SETTLED_MS : (behind ?? null) === null && late >= PATIENCE_MS;
}

// Records by window, in order. One that came too late for its window is in the one that is open then.
function runsOf(records, lengthS, notBeforeS, now) {
  const runs = [];
  for (const record of records) {
    const window = windowAt(Math.max(arrivalOf(record, now), notBeforeS * 1000), lengthS);
    const last = runs[runs.length - 1];
    if (last && window.startS <= last.window.startS) last.records.push(record);
    else runs.push({ window, records: [record] });
  }
  return runs;
}

const timeOf = (seconds) => new Date(seconds * 1000).toISOString().replace('.000Z', 'Z');

// --- One shard -------------------------------------------------------------------------------------------------------

class Shard {
  constructor(handler, options) {
    this.redelivery = new Redelivery(options);
    Object.assign(this, { handler, options, window: null, state: {}, last: null, notBeforeS: 0, overSince: null });
  }

  initialize({ shardId }) {
    this.shardId = shardId;
    this.source = Source.of(process.env, this.options.functionName, this.options.streamArn);
  }

  async processRecords({ records, millisBehindLatest }) {
    if (this.options.windowS) return this.inWindows(records, millisBehindLatest);
    for (let left = records; left.length; ) {
      const failed = failedOf(await this.invoke(this.event(left)), left);
      const { before, error, rejected, again, pauseMs } = this.redelivery.after(failed, left);
      if (before) await checkpoint(before);
      if (error) throw error;
      await reject(rejected);
      if (!again.length) await checkpoint();
      else if (rejected.length) await checkpoint(rejected.at(-1));
      if (pauseMs) await sleep(pauseMs);
      left = again;
    }
  }

  // What is done is checkpointed; an open window comes again, from its first record.
  shutdownRequested() {}

  leaseLost() {}

  async shardEnded() {
    await this.close();
    await checkpoint();
  }

  event(records) {
    return eventOf(records, this.source, this.shardId, Date.now());
  }

  // An answer that JSON cannot say fails the invocation, as in Lambda.
  async invoke(event) {
    const result = await invoke(this.handler, event, contextOf(this.source, this.options.timeoutS));
    return JSON.parse(JSON.stringify(result) ?? 'null');
  }

  async inWindows(records, behind) {
    const now = Date.now();
    for (const run of runsOf(records, this.options.windowS, this.notBeforeS, now)) {
      if (run.window.startS !== this.window?.startS) {
        await this.close();
        this.notBeforeS = run.window.startS;
      }
      await this.aggregate(run.window, run.records);
    }
    if (records.length) this.overSince = null;
    else await this.rest(now, behind);
  }

  // An empty batch may have waited in the daemon, with records behind it: only what goes on is believed.
  async rest(now, behind) {
    if (!this.window || !isOver(this.window, now, behind)) this.overSince = null;
    else if (this.overSince === null) this.overSince = now;
    else if (now - this.overSince >= QUIET_MS) await this.close();
  }

  // The state of an answer that names failures holds what comes before them.
  async aggregate(window, records) {
    for (let left = records; left.length; ) {
      this.window = window;
      const result = await this.invoke(this.windowed(left, {}));
      const state = result?.state;
      if (state === null || typeof state !== 'object' || Array.isArray(state))
        throw new Error(`with --tumbling-window a handler must return {"state": {...}}, not ${JSON.stringify(result)}`);
      this.state = state;
      const { before, error, rejected, again, pauseMs } = this.redelivery.after(failedOf(result, left), left);
      if (error) throw error;
      await reject(rejected);
      this.last = (again.length ? (rejected.at(-1) ?? before) : left.at(-1)) ?? this.last;
      if (Buffer.byteLength(JSON.stringify(state)) > STATE_MOST_BYTES) await this.close({ isEarly: true });
      if (pauseMs) await sleep(pauseMs);
      left = again;
    }
  }

  // The only place where a window's records are checkpointed: its state is nowhere but here.
  async close({ isEarly = false } = {}) {
    if (!this.window || !this.last) return;
    failedOf(await this.invoke(this.windowed([], { isFinal: true, isEarly })), []);
    await checkpoint(this.last);
    this.notBeforeS = isEarly ? this.window.startS : this.window.endS;
    Object.assign(this, { window: null, state: {}, last: null });
  }

  windowed(records, { isFinal = false, isEarly = false }) {
    return {
      ...this.event(records),
      window: { start: timeOf(this.window.startS), end: timeOf(this.window.endS) },
      state: this.state,
      shardId: this.shardId,
      eventSourceARN: this.source.arn,
      isFinalInvokeForWindow: isFinal,
      isWindowTerminatedEarly: isEarly,
    };
  }
}

// --- The handler and what surrounds it -------------------------------------------------------------------------------

function contextOf(source, timeoutS) {
  const until = performance.now() + timeoutS * 1000;
  return {
    callbackWaitsForEmptyEventLoop: true,
    functionName: source.functionName,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    invokedFunctionArn: source.functionArn,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    awsRequestId: randomUUID(),
    logGroupName: process.env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    // Down to 0. Nothing happens then: the daemon's timeoutInSeconds ends what takes too long.
    getRemainingTimeInMillis: () => Math.max(0, Math.floor(until - performance.now())),
  };
}

// All ways in which a handler can end: a promise, a callback, context.done and its kin, or nothing left to do.
function invoke(handler, event, context) {
  return new Promise((resolve, fail) => {
    const whenIdle = (act) => process.once('beforeExit', act);
    let isPromised = false;
    const idle = () =>
      isPromised ? fail(new Error('nothing is left to do, and the promise of the handler is not settled')) : resolve(null);
    const settle = (act) => {
      process.removeListener('beforeExit', idle);
      act();
    };
    const done = (error, result) => {
      const act = error ? () => fail(error) : () => resolve(result);
      settle(() => (context.callbackWaitsForEmptyEventLoop && !error ? whenIdle(act) : act()));
    };
    context.done = done;
    context.succeed = (result) => settle(() => resolve(result));
    context.fail = (error) => settle(() => fail(error ?? new Error('context.fail was called')));
    whenIdle(idle);
    try {
      const returned = handler(event, context, done);
      isPromised = typeof returned?.then === 'function';
      if (isPromised)
        returned.then(
          (result) => settle(() => resolve(result)),
          (error) => settle(() => fail(error)),
        );
    } catch (error) {
      settle(() => fail(error));
    }
  });
}

// MODULE.FUNCTION, also folder/module.function and module.object.function; the module is up to the first dot.
async function findHandler(text, root) {
  const [, folder, name, members] = /^(.*\/)?([^./]+)\.([^/]+)$/.exec(text) ?? [];
  if (!name) throw new NoHandler(`the handler must be MODULE.FUNCTION, such as app.handler, not ${JSON.stringify(text)}`);
  const base = path.resolve(root, folder ?? '', name);
  const file = ['.js', '.mjs', '.cjs'].map((end) => base + end).find((each) => fs.existsSync(each));
  if (!file) throw new NoHandler(`there is no ${base}.js, .mjs or .cjs`);
  let module;
  try {
    module = await import(pathToFileURL(file));
  } catch (error) {
    throw new NoHandler(whyNot(error, file));
  }
  const lookIn = (found) => members.split('.').reduce((each, member) => each?.[member], found);
  const handler = lookIn(module) ?? lookIn(module.default);
  if (typeof handler !== 'function')
    throw new NoHandler(`${file} has no function ${JSON.stringify(members)}, which the handler ${text} names`);
  return handler;
}

// The stack of an error begins with the place for syntax errors of CommonJS; elsewhere the place is in its first lines.
function whyNot(error, file) {
  if (!(error instanceof Error)) return `${file}: ${String(error)}`;
  const place = /(?:^|[\s(]|file:\/\/)(\/[^\s()]+?:\d+)(?::\d+)?\)?$/m.exec(error.stack ?? '');
  return `${place ? place[1] : file}: ${error.name}: ${error.message.split('\n')[0]}`;
}

// Of Lambda's runtime; what is set already stays.
function setVariables(env, functionName, handler, root) {
  const arn = env.KCL_STREAM_ARN;
  const region = env.AWS_REGION || env.AWS_DEFAULT_REGION || (arn && arn.split(':')[3]);
  const name = env.AWS_LAMBDA_FUNCTION_NAME || functionName;
  const day = new Date().toISOString().slice(0, 10).replaceAll('-', '/');
  const values = {
    AWS_LAMBDA_FUNCTION_NAME: name,
    AWS_LAMBDA_FUNCTION_VERSION: '$LATEST',
    AWS_LAMBDA_FUNCTION_MEMORY_SIZE: '128', // Lambda's default
    AWS_LAMBDA_INITIALIZATION_TYPE: 'on-demand',
    AWS_LAMBDA_LOG_GROUP_NAME: `/aws/lambda/${name}`,
    AWS_LAMBDA_LOG_STREAM_NAME: `${day}/[$LATEST]${randomBytes(16).toString('hex')}`,
    AWS_EXECUTION_ENV: `AWS_Lambda_nodejs${process.versions.node.split('.')[0]}.x`,
    LAMBDA_TASK_ROOT: root,
    LAMBDA_RUNTIME_DIR: __dirname,
    _HANDLER: handler,
    TZ: ':UTC',
    ...(region && { AWS_REGION: region, AWS_DEFAULT_REGION: region }),
  };
  for (const [variable, value] of Object.entries(values)) env[variable] ??= value;
}

function read(words) {
  const text = { type: 'string' };
  const rejectNamed = { type: 'boolean' };
  const options = {
    'function-name': text, 'stream-arn': text, timeout: text, 'tumbling-window': text, attempts: text, 'reject-named': rejectNamed,
  }; // prettier-ignore
  let given;
  try {
    given = parseArgs({ args: words, options, allowPositionals: true });
  } catch (error) {
    throw new NoHandler(error.message);
  }
  const { values, positionals } = given;
  if (positionals.length !== 1) throw new NoHandler('usage: node kcl_lambda.js [OPTIONS] MODULE.FUNCTION');
  const [handler] = positionals;
  const timeoutS = Number(values.timeout ?? 900);
  const windowS = Number(values['tumbling-window'] ?? 0);
  if (!(timeoutS > 0)) throw new NoHandler(`--timeout must be above 0: ${values.timeout}`);
  if (!Number.isInteger(windowS) || windowS < 0 || windowS > WINDOW_MOST_S)
    throw new NoHandler(`a tumbling window has 1 to ${WINDOW_MOST_S} seconds: ${values['tumbling-window']}`);
  const attempts = Number(values.attempts ?? 3);
  if (!Number.isInteger(attempts) || attempts < 0) throw new NoHandler(`--attempts must be at least 0: ${values.attempts}`);
  const module = path.basename(handler).split('.')[0];
  const functionName = values['function-name'] || process.env.AWS_LAMBDA_FUNCTION_NAME || module;
  const how = { attempts, rejectNamed: values['reject-named'] };
  return { handler, timeoutS, windowS, functionName, streamArn: values['stream-arn'], ...how };
}

async function main() {
  // Descriptor 1 is the daemon's: console, loggers and whoever else asks for stdout get stderr.
  Object.defineProperty(process, 'stdout', { configurable: true, enumerable: true, value: process.stderr });
  const options = read(process.argv.slice(2));
  const root = process.env.LAMBDA_TASK_ROOT || process.cwd();
  Source.of(process.env, options.functionName, options.streamArn);
  setVariables(process.env, options.functionName, options.handler, root);
  const shard = new Shard(await findHandler(options.handler, root), options);
  listen();
  for (let message = await receive(); message; message = await receive()) {
    if (!ACTIONS.includes(message.action)) throw new Error(`unknown action ${message.action}`);
    try {
      await shard[message.action](message);
    } catch (error) {
      if (!(error instanceof LeaseLost)) throw error;
    }
    send({ action: 'status', responseFor: message.action });
  }
}

main().then(
  () => process.exit(0),
  (error) => {
    const isOurs = error instanceof NoHandler;
    const said = isOurs ? `kcl_lambda: ${error.message}` : (error?.stack ?? String(error));
    fs.writeSync(2, `${said}\n`); // without a status: another process gets the records again
    process.exit(isOurs ? EXIT_NO_HANDLER : EXIT_HANDLER_FAILED);
  },
);
