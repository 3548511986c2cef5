// Three profiles for k6: a retry storm, a hot key and a flood of keys.
//
//   k6 run -e PROFILE=storm -e HOST=http://127.0.0.1:8000 --vus 20 --duration 30s k6.js
//
// PROFILE is storm, hot or flood; LOAD_PATH is the guarded endpoint, LOAD_AUDIT that of the audit, or "none". k6 ends
// with an error if a request fails, if nothing is answered, if one key gets two answers, or if a key was charged twice.
import http from "k6/http";
import { check } from "k6";
import { Counter } from "k6/metrics";
import exec from "k6/execution";

const HOST = __ENV.HOST || "http://127.0.0.1:8000";
const PATH = __ENV.LOAD_PATH || "/charges";
const AUDIT = __ENV.LOAD_AUDIT || "/audit";
const PROFILES = { storm, hot, flood };
const COPIES = 5;
// Answers that tell a caller to try again with the same key: nothing was done.
const REFUSALS = ["in-progress", "quota-exceeded"];

const answered = new Counter("keys_answered");
const refused = new Counter("keys_refused_for_now");

export const options = {
  thresholds: { checks: ["rate==1"], keys_answered: ["count>0"] },
  batchPerHost: COPIES,
};

if (__ENV.PROFILE && !(__ENV.PROFILE in PROFILES)) {
  throw new Error(`PROFILE=${__ENV.PROFILE}: storm, hot or flood`);
}

export function setup() {
  return { run: `${Date.now()}-${Math.random()}`, twice: audited().charged_twice };
}

export default function (data) {
  PROFILES[__ENV.PROFILE || "storm"](data.run);
}

// Callers that do not wait for their answers: copies of each request at once, and one more behind them.
function storm(run) {
  const key = unique(run);
  const copies = http.batch(Array.from({ length: COPIES }, () => request(key, "copy")));
  const retry = send(key, "retry");
  judge([...copies, retry]);
  check(retry, { "a retry of work that was done has its answer": () => !copies.some(isDone) || isDone(retry) });
}

// Every caller sends the same key, which is another one each second.
function hot(run) {
  judge([send(`${run}-${Math.floor(Date.now() / 1000)}`, "hot key")]);
}

// A new key with every request, as of a client that makes one for each attempt.
function flood(run) {
  judge([send(unique(run), "new key")]);
}

function unique(run) {
  return `${run}-${exec.vu.idInTest}-${exec.vu.iterationInInstance}`;
}

// The request; the same one for the same key. Put yours here.
function request(key, name) {
  const body = JSON.stringify({ amount: 1 + (key.length % 100) });
  const params = {
    headers: { "Content-Type": "application/json", "Idempotency-Key": key },
    tags: { name },
    responseCallback: http.expectedStatuses({ min: 200, max: 299 }, 409, 429),
  };
  return ["POST", HOST + PATH, body, params];
}

function send(key, name) {
  const [, url, body, params] = request(key, name);
  return http.post(url, body, params);
}

function judge(responses) {
  const done = responses.filter(isDone);
  const others = responses.filter((one) => !isDone(one));
  answered.add(done.length);
  refused.add(others.length);
  check(null, {
    "every answer is a result, or tells the caller to try again": () =>
      others.every((one) => REFUSALS.includes(codeOf(one))),
    "one key has one answer": () => new Set(done.map((one) => one.body)).size <= 1,
  });
}

function isDone(response) {
  return response.status >= 200 && response.status < 300;
}

// The code of a problem, as RFC 9457's extension has it.
function codeOf(response) {
  try {
    return response.json("code");
  } catch (error) {
    return "";
  }
}

function audited() {
  return AUDIT === "none" ? { charged_twice: 0 } : http.get(HOST + AUDIT).json();
}

export function teardown(data) {
  const found = audited();
  console.log(`audit: ${JSON.stringify(found)}`);
  check(found, { "no key was charged twice": (one) => one.charged_twice === data.twice });
}
