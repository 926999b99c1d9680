// BullMQ on Node: the roles of bench/child.py, and the record of bench/record.py.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const packages = process.env.BENCH_NODE;
const require = createRequire(path.join(packages, "package.json"));
const { Queue, QueueEvents, Worker } = require("bullmq");

const CONCURRENCY = 100;
const CHUNK = 500;
const DONE = 0x80;
const connection = {
  host: "127.0.0.1",
  port: Number(process.env.BENCH_PORT),
  maxRetriesPerRequest: null,
};
const options = { removeOnComplete: true };
const messages = Number(process.env.BENCH_MESSAGES);
const [role, ...rest] = process.argv.slice(2);
const numbers = rest.map(Number);

const payload = (i) => ({
  i,
  order_id: `ORD-${String(i).padStart(10, "0")}`,
  user_id: 100000 + i,
  amount: 99.95,
  kind: "created",
  tags: ["a", "b"],
  note: "x".repeat(71),
});
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const now = () => Number(process.hrtime.bigint()) / 1e9;
const cpu = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};

// Node cannot map a file: a note is a write, two for a handler that does nothing.
let file = -1;
const flags = new Uint8Array(messages);
const eight = Buffer.alloc(8);
const one = Buffer.alloc(1);
const noteTime = (part, i) => {
  eight.writeBigInt64LE(process.hrtime.bigint());
  fs.writeSync(file, eight, 0, 8, 8 * part * messages + 8 * i);
};
const noteFlag = (i, flag) => {
  flags[i] = flag;
  one[0] = flag;
  fs.writeSync(file, one, 0, 1, 16 * messages + i);
};
const isSeen = (i) => {
  fs.readSync(file, one, 0, 1, 16 * messages + i);
  return one[0] > 0;
};

const timed = async (work) => {
  const [began, used] = [now(), cpu()];
  await work();
  return { seconds: now() - began, cpu: cpu() - used };
};

const produce = async (count, warmUp, callers) => {
  const queue = new Queue("bench", { connection });
  for (let i = 0; i < warmUp; i++) await queue.add("bench", payload(i), options);
  const shares = Array.from({ length: callers }, () => []);
  for (let i = 0; i < count; i++) shares[i % callers].push(payload(i));
  const caller = async (share) => {
    for (const each of share) await queue.add("bench", each, options);
  };
  const measured = await timed(() => Promise.all(shares.map(caller)));
  await queue.close();
  return measured;
};

const produceMany = async (count) => {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const chunks = [];
  for (let start = 0; start < count; start += CHUNK) {
    const length = Math.min(CHUNK, count - start);
    const job = (_, k) => ({ name: "bench", data: payload(start + k), opts: options });
    chunks.push(Array.from({ length }, job));
  }
  const measured = await timed(async () => {
    for (const chunk of chunks) await queue.addBulk(chunk);
  });
  await queue.close();
  return measured;
};

const paced = async (count, warmUp, interval, delay) => {
  file = fs.openSync(process.env.BENCH_RECORD, "r+");
  const queue = new Queue("bench", { connection });
  for (let i = 0; i < warmUp; i++) {
    await queue.add("bench", payload(i), options);
    await sleep(0.02);
  }
  const deadline = now() + 30;
  for (let i = 0; i < warmUp; i++) while (!isSeen(i) && now() < deadline) await sleep(0.01);
  const began = now() + 0.05;
  const late = delay ? { ...options, delay: Math.round(delay * 1000) } : options;
  for (let k = 0; k < count; k++) {
    const gap = began + k * interval - now();
    if (gap > 0) await sleep(gap);
    const each = payload(warmUp + k);
    noteTime(0, warmUp + k);
    await queue.add("bench", each, late);
  }
  await queue.close();
  return {};
};

const call = async (count, warmUp, callers, seconds) => {
  const queue = new Queue("bench", { connection });
  const events = new QueueEvents("bench", { connection });
  await events.waitUntilReady();
  await sleep(0.5); // it connects a moment later; earlier events are lost
  const took = [];
  const caller = async (first, last, until) => {
    for (let i = first; i < last; i += callers) {
      const began = now();
      if (began > until) break;
      const job = await queue.add("bench", payload(i), { removeOnComplete: { age: 60 } });
      const result = await job.waitUntilFinished(events, 30000);
      if (result !== i) throw new Error(`${result} is not ${i}`);
      took.push(now() - began);
    }
  };
  const allOfThem = async (first, last, within) => {
    const until = now() + within;
    const share = (_, one) => caller(first + one, last, until);
    await Promise.all(Array.from({ length: callers }, share));
  };
  await allOfThem(0, warmUp, 30);
  took.length = 0;
  const measured = await timed(() => allOfThem(warmUp, warmUp + count, seconds));
  await events.close();
  await queue.close();
  took.sort((a, b) => a - b);
  const at = (part) => took[Math.floor(took.length * part)] * 1000;
  return { ...measured, messages: took.length, p50: at(0.5), p99: at(0.99) };
};

const work = (concurrency) => {
  file = fs.openSync(process.env.BENCH_RECORD, "r+");
  const seconds = Number(process.env.BENCH_SLEEP || "0");
  const nothing = async (job) => {
    const i = job.data.i;
    noteTime(1, i);
    noteFlag(i, (flags[i] + 1) | DONE);
  };
  const answer = async (job) => {
    await nothing(job);
    return job.data.i;
  };
  const sleeping = async (job) => {
    const i = job.data.i;
    noteTime(1, i);
    noteFlag(i, flags[i] + 1);
    await sleep(seconds);
    noteFlag(i, flags[i] | DONE);
  };
  const plain = seconds ? sleeping : nothing;
  new Worker("bench", process.env.BENCH_RESULTS === "1" ? answer : plain, {
    connection,
    concurrency: concurrency || CONCURRENCY,
    ...(process.env.BENCH_LIMIT === "rate" ? { limiter: { max: 50, duration: 1000 } } : {}),
  });
};

const describe = () => {
  const version = (name) =>
    JSON.parse(fs.readFileSync(path.join(packages, "node_modules", name, "package.json"))).version;
  return {
    runtime: `Node ${process.versions.node}`,
    versions: { bullmq: version("bullmq"), ioredis: version("ioredis") },
    concurrency: CONCURRENCY,
    settings: "concurrency=100, removeOnComplete",
    bulk: "Queue.addBulk, 500 at a time",
    results: "job.waitUntilFinished, removeOnComplete={age: 60}",
    is_async: true,
    has_delay: true,
  };
};

if (role === "work") work(...numbers);
else if (role === "produce") console.log(JSON.stringify(await produce(...numbers)));
else if (role === "produce_many") console.log(JSON.stringify(await produceMany(...numbers)));
else if (role === "paced") console.log(JSON.stringify(await paced(...numbers)));
else if (role === "call") console.log(JSON.stringify(await call(...numbers)));
else console.log(JSON.stringify(describe()));
