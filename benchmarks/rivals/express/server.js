// The conformance fixture behind express-idempotency: node server.js PORT
const express = require('express');
const { idempotency, getSharedIdempotencyService } = require('express-idempotency');

const version = (name) => require(`${name}/package.json`).version;
const capabilities = {
  fixture: 1,
  name: 'express-idempotency',
  version: version('express-idempotency'),
  server: `express ${version('express')}`,
  features: ['gate', 'stream', 'raise', 'hop'],
  unsupported: {
    store: "its store is in memory, and can't be taken away",
    elapse: "its clock can't be moved",
    principals: 'it has no notion of a principal',
    background: 'its handlers have no work after the response',
  },
  choices: { key_syntax: 'bare', mismatch_status: 417 },
};
const executions = new Map();
const gates = new Map();
const gate = (id) => {
  if (!gates.has(id)) {
    const one = {};
    one.opened = new Promise((resolve) => { one.open = resolve; setTimeout(resolve, 30000).unref(); });
    gates.set(id, one);
  }
  return gates.get(id);
};

async function act(req, res) {
  if (getSharedIdempotencyService().isHit(req)) return;
  const script = JSON.parse(req.get('fixture-script') || '{}');
  const id = script.id || '';
  executions.set(id, (executions.get(id) || 0) + 1);
  if (script.gate === 'before') await gate(id).opened;
  if (script.raise === 'before') {
    await getSharedIdempotencyService().reportError(req);
    throw new Error('told to raise');
  }
  let piece = Buffer.from(script.text || '');
  if (script.base64 !== undefined) piece = Buffer.from(script.base64, 'base64');
  else if (script.text === undefined) piece = Buffer.isBuffer(req.body) ? req.body : Buffer.alloc(0);
  res.status(script.status || 200);
  if (script.text === undefined && script.base64 === undefined) res.type(req.get('content-type') || 'text/plain');
  const lines = new Map();
  for (const [name, value] of script.headers || []) lines.set(name, [...(lines.get(name) || []), value]);
  for (const [name, values] of lines) res.setHeader(name, values.length > 1 ? values : values[0]);
  const repeat = script.repeat || 1;
  if (!script.stream) return void res.send(Buffer.concat(Array(repeat).fill(piece)));
  for (let number = 0; number < repeat; number += 1) {
    if (number === 1 && script.gate === 'between') await gate(id).opened;
    if (number === 1 && script.raise === 'between') {
      await getSharedIdempotencyService().reportError(req);
      return void res.destroy(new Error('told to raise'));
    }
    res.write(piece);
  }
  res.end();
}

const app = express();
app.get('/fixture', (req, res) => res.json(capabilities));
app.get('/fixture/calls', (req, res) => res.json({ executions: executions.get(req.query.id) || 0 }));
app.get('/fixture/release', (req, res) => { gate(req.query.id).open(); res.json({}); });
app.get('/fixture/reset', (req, res) => { executions.clear(); gates.forEach((one) => one.open()); res.json({}); });
app.use('/act', express.raw({ type: () => true, limit: '10mb', inflate: false }));
const stored = (status) => (status >= 200 && status < 400) || [400, 404, 409, 410, 422].includes(status);
const guard = idempotency({ responseValidator: { isValidForPersistence: (response) => stored(response.statusCode) } });
app.post('/act{/*rest}', guard);
app.patch('/act{/*rest}', guard);
app.all('/act{/*rest}', act);
app.use((error, req, res, next) => {
  if (res.headersSent) return void res.destroy();
  res.status(res.statusCode >= 400 ? res.statusCode : error.status || 500).json({ detail: error.message });
});
app.listen(Number(process.argv[2]), '127.0.0.1');
