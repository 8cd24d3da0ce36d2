// A handler with AWS's Powertools: what it does not process, their processor names in its answer.
'use strict';

const { appendFileSync } = require('node:fs');
const { BatchProcessor, EventType, processPartialResponse } = require('@aws-lambda-powertools/batch');

const processor = new BatchProcessor(EventType.KinesisDataStreams);

async function process({ kinesis }) {
  const text = Buffer.from(kinesis.data, 'base64').toString();
  if (text.startsWith('poison')) throw new Error(`cannot read '${text}'`);
  appendFileSync('processed.txt', `${kinesis.sequenceNumber}\n`);
}

exports.handler = async (event, context) => processPartialResponse(event, process, processor, { context });
