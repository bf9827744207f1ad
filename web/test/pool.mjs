// A pool manager on loopback with hosts that hold leases and guests, for the tests: the real one, driven through its API.
import { execFileSync, spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { PROGRAM, scratch } from "./setup.mjs";

/** Requests that are under way at once. */
const AT_ONCE = 16;

async function post(url, body) {
  const response = await fetch(url, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Error(`${url}: ${JSON.stringify(answer)}`);
  return answer;
}

/** Runs all of these, some at once. */
async function all(count, act) {
  let next = 0;
  const worker = async () => {
    while (next < count) await act(next++);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** A lease and a guest for every host. Without certificates, every client may act for all. */
async function fill(url, names) {
  await post(`${url}/v1/emcs/1/failed`, {});
  await all(names.length, async (host) => {
    const at = `${url}/v1/hosts/${names[host]}`;
    const { epoch } = await post(`${at}/lease`, { instance: `start ${host}` });
    await post(`${at}/assignments`, { epoch, request: `first-${host}`, vm: host === 7 ? "<i>guest 7</i>" : `guest-${host}`, slices: 1 + (host % 3) });
  });
}

/** A manager of so many hosts, each with one guest of one to three slices; the second of two controllers has failed. */
export async function pool_(hosts, slices) {
  const directory = scratch();
  const names = Array.from({ length: hosts }, (_, host) => `host-${String(host).padStart(4, "0")}`);
  const lines = [
    'listen = "127.0.0.1:0"', 'ledger = "ledger.redb"', 'pool_dir = "pool"', 'slice_size = "128MiB"', 'lease = "1h"',
    `emcs = [{ slices = ${slices - 64} }, { slices = 64 }]`, `hosts = ${JSON.stringify(names)}`, 'operators = ["operator"]',
  ];
  const config = join(directory, "pool.toml");
  writeFileSync(config, `${lines.join("\n")}\n`);
  // The slices are sparse files, and no guest writes to them.
  execFileSync(PROGRAM, ["pool", "manager", "init", "--overcommit", "--config", config]);
  const child = spawn(PROGRAM, ["pool", "manager", "--insecure-loopback", "--config", config], { stdio: ["ignore", "ignore", "pipe"] });
  const stop = () => child.kill("SIGTERM");
  const output = createInterface(child.stderr);
  const url = await new Promise((resolve, reject) => {
    output.on("line", (line) => {
      const found = / on (127\.0\.0\.1:\d+)/.exec(line);
      if (found) resolve(`http://${found[1]}`);
    });
    child.once("exit", (code) => reject(new Error(`the pool manager exited with ${code}`)));
  });
  try {
    await fill(url, names);
  } catch (error) {
    stop();
    throw error;
  }
  return { url, stop };
}
