// A handler as for AWS Lambda: counts the words of its records.
'use strict';

let words = 0;

exports.handler = async (event, context) => {
  for (const { kinesis } of event.Records) {
    const text = Buffer.from(kinesis.data, 'base64').toString();
    words += text.split(/\s+/).filter(Boolean).length;
  }
  console.log(`${context.functionName}: ${words} words`);
};
