// BullMQ on Node: a flow, and a flow of three nested jobs.
import fs from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.FLOWS_NODE}/package.json`);
const { FlowProducer, QueueEvents, Worker } = require("bullmq");

const url = new URL(process.env.FLOWS_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const [concurrency, wait] = [10, 130_000];
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const page = async (number) => {
  await sleep(Number(process.env.FLOWS_SLEEP));
  fs.appendFileSync(process.env.FLOWS_RECORD, ".");
  return number;
};
const ask = async (text) => text + "!";

const [role, count] = process.argv.slice(2);

// begin flow
const flows = new FlowProducer({ connection });
const books = new QueueEvents("book", { connection });
const render = (job) => page(job.data);
const bind = async (job) =>
  Object.values(await job.getChildrenValues()).reduce((sum, number) => sum + number, 0);
const book = async () => {
  const child = (_, number) => ({ name: "page", queueName: "page", data: number });
  const children = Array.from({ length: 100 }, child);
  const { job } = await flows.add({ name: "book", queueName: "book", children });
  return job.waitUntilFinished(books, wait);
};

// begin steps
const tickets = new QueueEvents("ticket", { connection });
const step = async (job) => ask(job.data.text ?? Object.values(await job.getChildrenValues())[0]);
const ticket = async () => {
  const queueName = "ticket";
  const plan = { name: "plan", queueName, data: { text: "bug" } };
  const patch = { name: "patch", queueName, data: {}, children: [plan] };
  const { job } = await flows.add({ name: "deploy", queueName, data: {}, children: [patch] });
  return job.waitUntilFinished(tickets, wait);
};
// end

if (role === "work") {
  for (const [name, handler] of Object.entries({ page: render, book: bind, ticket: step }))
    new Worker(name, handler, { connection, concurrency });
} else {
  await sleep(1); // the event stream connects a moment later; earlier events are lost
  const times = [];
  for (let i = 0; i < Number(count); i++) {
    const began = performance.now();
    const answer = await (role === "flow" ? book() : ticket());
    times.push(performance.now() - began);
    if (answer !== (role === "flow" ? 4950 : "bug!!!")) throw new Error(`wrong answer: ${answer}`);
  }
  console.log(JSON.stringify(times));
  process.exit(0);
}
