// A journal of thirty days, consoles and a browser for the tests.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
export const OUT = join(ROOT, "target/console");
export const PROGRAM = process.env.THERMOCLINE ?? join(ROOT, "target/debug/thermocline");
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Machines are shared: medians of several tries are compared with the bounds. */
export const TRIES = 5;
export const PAINT_MAX_MS = 2_000;
export const INTERACTION_MAX_MS = 200;

export const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

export const DAYS = 30;
const JOURNAL_JOBS = 20;

/** Writes thirty days of hourly control periods of some jobs, from the records of a real journal; returns the path. */
export function writeJournal(directory) {
  const golden = readFileSync(join(ROOT, "crates/node/agent/tests/journal-6.12-idle.jsonl"), "utf8");
  const records = golden.trim().split("\n").map((line) => JSON.parse(line));
  const of = (kind) => records.filter((record) => record.record === kind);
  const job = of("job").find((record) => record.job === "/redis");
  const periods = of("period").filter((record) => record.job === "/redis" && record.memory.far > 0);
  const begin = Date.UTC(2026, 9, 1);
  const lines = [{ ...of("agent")[0], version: 7, unix_ms: begin }];
  for (let n = 0; n < JOURNAL_JOBS; n += 1) lines.push({ ...job, job: `/shop.slice/shop-${n}.service`, id: n + 1, unix_ms: begin });
  for (let hour = 1; hour <= DAYS * 24; hour += 1) {
    const unix_ms = begin + hour * 3_600_000;
    const wave = 1 + 0.3 * Math.sin((hour / 24) * 2 * Math.PI);
    let far = 0;
    for (let n = 0; n < JOURNAL_JOBS; n += 1) {
      const period = structuredClone(periods[(hour * 7 + n) % periods.length]);
      const current = (n + 1) * (1 << 28) * wave;
      period.memory = { current: Math.round(current), far: Math.round(current * 0.2), pool: Math.round(current * 0.06) };
      period.input.job_age_ms = hour * 3_600_000;
      // One job has more promotions than its objective permits.
      period.outcome.elapsed_ms = 60_000;
      period.outcome.promoted = n === 3 && hour % 20 === 0 ? period.step.working_set : Math.round(period.step.working_set * 0.02 * wave);
      lines.push({ ...period, job: `/shop.slice/shop-${n}.service`, id: n + 1, unix_ms });
      far += period.memory.far - period.memory.pool;
    }
    const ledger = { anonymous_bytes: far, shared_bytes: 0, file_bytes: 0, slow_bytes: 0, pool_bytes: 0, agent_bytes: 1 << 24, kdamond_bytes: 0 };
    lines.push({ record: "savings", unix_ms, dram_bytes: 2 ** 37, ...ledger, net_bytes: far - (1 << 24), available_bytes: 2 ** 35, in_use_bytes: 2 ** 36, request_gap_ratio: null });
  }
  for (let n = 0; n < 120; n += 1) lines.push({ record: "event", unix_ms: begin + n * 3_600_000, job: null, what: `a generated event, number ${n}` });
  const path = join(directory, "journal");
  writeFileSync(path, lines.map((line) => JSON.stringify(line)).join("\n") + "\n");
  return path;
}

export function scratch() {
  return mkdtempSync(join(tmpdir(), "thermocline-console-"));
}

/** A running console: its address, and how to stop it. */
export async function console_(...args) {
  const child = spawn(PROGRAM, ["--format", "json", "console", "--listen", "127.0.0.1:0", ...args], { stdio: ["ignore", "pipe", "inherit"] });
  const started = await new Promise((resolve, reject) => {
    createInterface(child.stdout).once("line", (line) => resolve(JSON.parse(line)));
    child.once("exit", (code) => reject(new Error(`the console exited with ${code}`)));
  });
  return { url: started.url, stop: () => child.kill("SIGTERM"), child };
}

/** Waits until everything is read; returns the seconds that it took. */
export async function read(url) {
  const begun = Date.now();
  for (;;) {
    const status = await (await fetch(`${url}api/status`)).json();
    if (status.read_unix_ms !== null) return (Date.now() - begun) / 1000;
    if (Date.now() - begun > 600_000) throw new Error(`not read: ${JSON.stringify(status)}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}

/** Waits until these views have something to show. */
export async function ready(url, ...views) {
  const begun = Date.now();
  for (;;) {
    const status = await (await fetch(`${url}api/status`)).json();
    if (views.every((view) => status[view].state === "ready")) return;
    if (Date.now() - begun > 60_000) throw new Error(`not ready: ${JSON.stringify(status)}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Chromium; a violation of the content security policy or an error on a page is a failure of the test. */
export async function browser() {
  // Chromium's own sandbox needs a user other than root.
  const args = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: CHROMIUM, args });
}

export async function page(of, { width = 1280, height = 900, colorScheme = "light" } = {}) {
  const context = await of.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
  const opened = await context.newPage();
  const problems = [];
  opened.on("pageerror", (error) => problems.push(String(error)));
  opened.on("console", (message) => {
    // The browser itself reports each answer of 4xx and 5xx, which the page handles.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) problems.push(message.text());
  });
  return { page: opened, problems, close: () => context.close() };
}

/** Opens a view of a console, and fails if the page reported an error. */
export async function opened(of, url, view, options, examine) {
  const { page: tab, problems, close } = await page(of, options);
  await tab.goto(`${url}#${view}`);
  await tab.waitForSelector(`#content[data-view="${view}"]`);
  await examine(tab);
  assert.deepEqual(problems, []);
  await close();
}

/** Keeps the measured figures in a file, and prints them. */
export function report(name, figures) {
  mkdirSync(OUT, { recursive: true });
  writeFileSync(join(OUT, name), `${JSON.stringify(figures, null, 1)}\n`);
  console.log(figures);
}

/** Where screenshots go. */
export function picture(name) {
  mkdirSync(join(OUT, "screens"), { recursive: true });
  return join(OUT, "screens", `${name}.png`);
}
