// A service in another language that knows nothing of idempotency keys: the conformance fixture, a ledger of payments,
// and bodies of any size. `node service.mjs LEDGER` prints its port; the ledger outlives the process.
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import http from "node:http";

const ledger = process.argv[2];
const capabilities = JSON.parse(process.env.CAPABILITIES ?? "{}");
const executions = new Map(), background = new Map(), gates = new Map(), seen = [];

const count = (map, id) => map.set(id, (map.get(id) ?? 0) + 1);
const pause = () => new Promise((resume) => setImmediate(resume));

function gate(id) {
  if (!gates.has(id)) {
    let open;
    const passed = new Promise((resume) => (open = resume));
    gates.set(id, { open, passed });
    setTimeout(open, 30_000).unref();
  }
  return gates.get(id);
}

function control(name, query) {
  const id = query.get("id") ?? "";
  if (name === "") return { fixture: 1, ...capabilities };
  if (name === "/calls") return { executions: executions.get(id) ?? 0, background: background.get(id) ?? 0 };
  if (name === "/release") gate(id).open();
  if (name === "/seen") return seen;
  if (name === "/reset") {
    executions.clear();
    background.clear();
    for (const { open } of gates.values()) open();
  }
  return {};
}

async function act(request, response, body) {
  const script = { id: "", status: 200, headers: [], repeat: 1, ...JSON.parse(request.headers["fixture-script"] ?? "{}") };
  count(executions, script.id);
  if (script.gate === "before") await gate(script.id).passed;
  if (script.raise === "before") return request.socket.destroy();
  const lines = script.headers.flat();
  let piece = body;
  if (script.base64 !== undefined) piece = Buffer.from(script.base64, "base64");
  else if (script.text !== undefined) piece = Buffer.from(script.text);
  else if (request.headers["content-type"]) lines.push("Content-Type", request.headers["content-type"]);
  const bodyless = request.method === "HEAD" || script.status === 204 || script.status === 304;
  if (!script.stream && !bodyless) lines.push("Content-Length", String(piece.length * script.repeat));
  response.writeHead(script.status, lines);
  response.flushHeaders();
  for (let number = 0; number < script.repeat && !bodyless; number++) {
    if (number === 1 && script.gate === "between") await gate(script.id).passed;
    if (number === 1 && script.raise === "between") return request.socket.destroy();
    if (!response.write(piece)) await new Promise((resume) => response.once("drain", resume));
    if (script.stream) await pause();
  }
  response.end();
  if (script.background) count(background, script.id);
  if (script.background === "raise") setImmediate(() => { throw new Error("told to raise after the response"); });
}

// A payment is in the ledger, or it is not; a key that it was sent with is recognised if RECOGNISES is set.
async function pay(request, response, body) {
  const order = JSON.parse(body).order, key = request.headers["idempotency-key"] ?? "";
  if (order.startsWith("gated")) {
    process.stdout.write(`began ${order}\n`);
    await gate(order).passed;
  }
  const known = existsSync(ledger) ? readFileSync(ledger, "utf8").split("\n") : [];
  const line = `${order} ${key}`;
  if (!(process.env.RECOGNISES && known.includes(line))) appendFileSync(ledger, `${line}\n`);
  process.stdout.write(`paid ${order}\n`);
  if (order.startsWith("gated")) await gate(`${order} answer`).passed;
  response.writeHead(201, { "Content-Type": "application/json" });
  response.end(JSON.stringify({ paid: order }));
}

async function big(request, response, url) {
  let got = 0;
  for await (const chunk of request) got += chunk.length;
  const size = Number(url.searchParams.get("size")), piece = Buffer.alloc(65_536, "x");
  response.writeHead(200, { "Content-Length": String(size), "X-Got": String(got) });
  for (let left = size; left > 0; left -= piece.length) {
    const sent = response.write(left < piece.length ? piece.subarray(0, left) : piece);
    if (!sent) await new Promise((resume) => { response.once("drain", resume); response.once("close", resume); });
    if (response.destroyed) return;
  }
  response.end();
}

async function serve(request, response) {
  const url = new URL(request.url, "http://service");
  seen.push({ method: request.method, url: request.url, headers: request.rawHeaders });
  if (url.pathname === "/big") return big(request, response, url);
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  if (url.pathname.startsWith("/fixture")) {
    response.writeHead(200, { "Content-Type": "application/json" });
    response.end(JSON.stringify(control(url.pathname.slice("/fixture".length), url.searchParams)));
  } else if (url.pathname === "/payments") {
    await pay(request, response, body);
  } else {
    await act(request, response, body);
  }
}

process.on("uncaughtException", () => {});
const server = http.createServer((request, response) => serve(request, response).catch(() => request.socket.destroy()));
server.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => process.stdout.write(`${server.address().port}\n`));
