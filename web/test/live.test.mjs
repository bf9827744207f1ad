// The rollout and the pool in a browser: what the views show, empty states, errors, a phone's width, and a pool of 1,000 hosts.
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { INTERACTION_MAX_MS, PAINT_MAX_MS, TRIES, browser, console_, median, opened, page, picture, ready, report, scratch } from "./setup.mjs";
import { pool_ } from "./pool.mjs";

const ROLLOUTS = process.env.CONSOLE_ROLLOUTS;
const HOSTS = 1_000;
const SLICES = 4_096;

const figures = {};
let chromium;
let pool;
let running;
let rolledBack;

const store = (name) => ["--rollout", join(ROLLOUTS, name, "store"), "--rollout-root", join(ROLLOUTS, name, "root.json")];

before(async () => {
  chromium = await browser();
  const state = ["--set", `agent.state_dir=${scratch()}`];
  pool = await pool_(HOSTS, SLICES);
  running = await console_(...state, ...store("running"), "--pool", pool.url);
  rolledBack = await console_(...state, ...store("rolled-back"));
  await ready(running.url, "rollout", "pool");
  await ready(rolledBack.url, "rollout");
});

after(async () => {
  running?.stop();
  rolledBack?.stop();
  pool?.stop();
  await chromium?.close();
  report("live.json", figures);
});

const content = (tab) => tab.textContent("#content");

/** The rows of a table by its label, as texts of cells. */
const rows = (tab, label) =>
  tab.$$eval(`[aria-label="${label}"] tbody tr`, (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent.trim())));

const WIDTHS = { desktop: {}, phone: { width: 400, height: 800 }, dark: { colorScheme: "dark" }, "dark-phone": { width: 400, height: 800, colorScheme: "dark" } };

test("both views fit a desk and a phone, and every text has contrast", async () => {
  for (const [console, view, as] of [[running, "rollout", "rollout"], [running, "pool", "pool"], [rolledBack, "rollout", "rolled-back"]]) {
    for (const [name, options] of Object.entries(WIDTHS)) {
      await opened(chromium, console.url, view, options, async (tab) => {
        const overflow = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        assert.ok(overflow <= 0, `${view} on a ${name} is ${overflow} px too wide`);
        assert.deepEqual(await tab.evaluate(faint), [], `${view} on a ${name}`);
        await tab.screenshot({ path: picture(`${as}-${name}`), fullPage: true });
      });
    }
  }
});

/** In the page: the texts whose contrast with what is behind them is below 4.5 (WCAG 2.2, 1.4.3). */
function faint() {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return parse(getComputedStyle(document.documentElement).backgroundColor);
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim() !== "");
    if (!own || element.closest("noscript, .skip") || element.matches(":disabled")) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${element.textContent.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return found;
}

test("a rollout shows its stages, guards and steps", async () => {
  await opened(chromium, running.url, "rollout", {}, async (tab) => {
    const text = await content(tab);
    for (const piece of ["bundle 7", "running, in all (100% of the machines)", "k98", "cold_age.percentile"]) assert.ok(text.includes(piece), `no ${piece} in ${text}`);
    const stages = await rows(tab, "Stages");
    assert.deepEqual(stages.map((cells) => cells.slice(0, 3)), [["first", "done", "30 %"], ["all", "current", "100 %"]]);
    // Hosts of the evaluated stage are counted; the current one was not evaluated.
    assert.ok(Number(stages[0][3]) >= 3 && stages[1][3] === "-", String(stages));
    const history = (await rows(tab, "History")).map((cells) => cells.slice(1, 3).join(" "));
    assert.deepEqual(history, ["first promoted", "first resumed", "first hold", "first pinned", "first hold, 3 times", "first started"]);
  });
  await opened(chromium, rolledBack.url, "rollout", {}, async (tab) => {
    const text = await content(tab);
    assert.ok(text.includes("is rolled back") && text.includes("stall: worse than allowed"), text);
    const guards = await rows(tab, "Guards");
    assert.equal(guards[0][1].toLowerCase(), "breach");
    assert.match(guards[0][2], /^\d[\d.]* % to \d[\d.]* %$/);
    assert.equal(guards[0][3], "1 %");
  });
});

test("the keyboard reaches the guards of a stage, and markup in a reason is text", async () => {
  await opened(chromium, running.url, "rollout", {}, async (tab) => {
    const first = tab.locator('[aria-label="Stages"] tbody a, [aria-label="Stages"] tbody button').first();
    await first.focus();
    await tab.keyboard.press("Enter");
    await tab.waitForSelector('#content[data-view="rollout/stage/0"]');
    const guards = await rows(tab, "Guards");
    assert.deepEqual(guards.map((cells) => cells[1].toLowerCase()), ["pass", "hold"]);
    assert.ok((await content(tab)).includes("<b>inspection</b>"));
    assert.equal(await tab.locator("#content b").count(), 0);
  });
  await opened(chromium, running.url, "rollout/stage/9", {}, async (tab) => assert.ok((await content(tab)).includes("stage")));
});

test("a pool shows its memory, hosts, guests and faults", async () => {
  await opened(chromium, running.url, "pool", {}, async (tab) => {
    const text = await content(tab);
    assert.ok(text.includes("512 GiB") && text.includes(`${HOSTS.toLocaleString("en")} of ${HOSTS.toLocaleString("en")}`), text.slice(0, 900));
    assert.ok(text.includes("EMC 1 has failed") && text.includes("thermocline pool emc repaired 1"), text.slice(0, 900));
    assert.ok(text.includes(`of ${HOSTS.toLocaleString("en")}`));
    await tab.locator("#content input[type=search]").first().fill("host-0007");
    assert.deepEqual((await rows(tab, "Hosts of the pool")).map((cells) => cells[0]), ["host-0007"]);
    await tab.locator('[aria-label="Hosts of the pool"] button.link').first().focus();
    await tab.keyboard.press("Enter");
    await tab.waitForSelector('#content[data-view="pool/host/host-0007"]');
    assert.ok((await content(tab)).includes("<i>guest 7</i>"));
    assert.equal(await tab.locator("#content i").count(), 0);
  });
  await opened(chromium, running.url, "pool/host/none", {}, async (tab) => assert.ok((await content(tab)).includes("no host none")));
});

test("arrow keys read the slices of the map, and Enter opens a host", async () => {
  await opened(chromium, running.url, "pool", {}, async (tab) => {
    const map = tab.locator(".slices").first();
    assert.match(await map.getAttribute("aria-label"), /online/);
    await map.focus();
    const said = () => tab.locator(".reading").first().textContent();
    await tab.keyboard.press("ArrowRight");
    const first = await said();
    assert.match(first, /^Slice 0\/0: online, host-\d+, guest /);
    await tab.keyboard.press("ArrowRight");
    assert.notEqual(await said(), first);
    // The map has pixels of the colour of used slices.
    const painted = await tab.evaluate(() => {
      const canvas = document.querySelector(".slices canvas");
      const probe = document.createElement("canvas").getContext("2d");
      probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--far").trim();
      probe.fillRect(0, 0, 1, 1);
      const far = probe.getImageData(0, 0, 1, 1).data;
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let found = 0;
      for (let at = 0; at < data.length; at += 4) found += data[at] === far[0] && data[at + 1] === far[1] && data[at + 2] === far[2];
      return found;
    });
    assert.ok(painted > 1_000, `${painted} pixels`);
    await tab.keyboard.press("Enter");
    await tab.waitForFunction(() => document.querySelector("#content").dataset.view.startsWith("pool/host/host-"));
  });
});

test("a view without the focus is drawn again, one with it waits for the button", async () => {
  const { page: tab, close } = await page(chromium);
  await tab.goto(`${running.url}#pool`);
  await tab.waitForSelector("#again");
  const at = () => tab.evaluate(() => document.querySelector("#again").previousSibling.textContent);
  const first = await at();
  await tab.waitForFunction((before) => document.querySelector("#again").previousSibling.textContent !== before, first, { timeout: 30_000 });
  await tab.locator("#content input[type=search]").first().fill("host-00");
  const second = await at();
  await tab.waitForTimeout(16_000);
  assert.equal(await at(), second);
  await tab.locator("#again").focus();
  await tab.keyboard.press("Enter");
  await tab.waitForFunction((before) => document.querySelector("#again").previousSibling.textContent !== before, second);
  assert.equal(await tab.locator("#content input[type=search]").first().inputValue(), "host-00", "the filter stays");
  assert.equal(await tab.evaluate(() => document.activeElement.id), "again", "the focus stays");
  await close();
});

test("a rollout or pool that is absent or unreachable says what to do", async () => {
  const state = ["--set", `agent.state_dir=${scratch()}`];
  const shows = async (url, view, ...texts) => {
    const { page: tab, problems, close } = await page(chromium);
    await tab.goto(`${url}#${view}`);
    for (const text of texts) await tab.waitForFunction((piece) => document.querySelector("#content").textContent.includes(piece), text);
    await tab.screenshot({ path: picture(`${view}-${texts[0].replaceAll(/\W+/g, "-")}`) });
    assert.deepEqual(problems, []);
    await close();
  };
  const none = await console_(...state);
  await shows(none.url, "rollout", "Nothing to show yet", "--rollout");
  await shows(none.url, "pool", "Nothing to show yet", "--pool");
  none.stop();
  const empty = await console_(...state, "--rollout", scratch(), "--pool", "http://127.0.0.1:9");
  await shows(empty.url, "rollout", "Nothing to show yet", "thermocline rollout start");
  await shows(empty.url, "pool", "Cannot be read", "No pool manager answers at http://127.0.0.1:9", "tries again");
  empty.stop();
  const damaged = scratch();
  mkdirSync(join(damaged, "log"));
  writeFileSync(join(damaged, "log/head.json"), "rubbish");
  const broken = await console_(...state, "--rollout", damaged);
  await shows(broken.url, "rollout", "Cannot be read", "head.json", "tries again");
  broken.stop();
});

test("1,000 hosts and 4,096 slices are painted, sorted and read without waiting", async () => {
  const painted = async (url, view) => {
    const paints = [];
    for (let turn = 0; turn < TRIES; turn += 1) {
      const { page: tab, close } = await page(chromium);
      const begun = Date.now();
      await tab.goto(`${url}#${view}`);
      await tab.waitForSelector("table.list tbody tr");
      paints.push(Date.now() - begun);
      await close();
    }
    return median(paints);
  };
  figures.pool_first_paint_ms = await painted(running.url, "pool");
  figures.rollout_first_paint_ms = await painted(running.url, "rollout");
  await opened(chromium, running.url, "pool", {}, async (tab) => {
    const times = await tab.evaluate(async (tries) => {
      const timed = async (act) => {
        const begun = performance.now();
        act();
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return performance.now() - begun;
      };
      const table = document.querySelector('[aria-label="Hosts of the pool"]').parentElement;
      const map = document.querySelector(".slices");
      const found = { pool_sort_ms: [], pool_filter_ms: [], pool_slice_ms: [] };
      for (let turn = 0; turn < tries; turn += 1) {
        found.pool_sort_ms.push(await timed(() => table.querySelectorAll("th button")[0].click()));
        found.pool_filter_ms.push(await timed(() => {
          const box = table.querySelector("input[type=search]");
          box.value = box.value === "" ? "host 07" : "";
          box.dispatchEvent(new Event("input"));
        }));
        found.pool_slice_ms.push(await timed(() => map.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }))));
      }
      return found;
    }, TRIES);
    for (const [name, values] of Object.entries(times)) figures[name] = median(values);
    // Choosing a host asks for the whole pool again, and draws it.
    const chosen = [];
    for (let turn = 0; turn < TRIES; turn += 1) {
      chosen.push(await tab.evaluate(async (host) => {
        const begun = performance.now();
        location.hash = `#pool/host/${host}`;
        while (document.querySelector("#content").dataset.view !== `pool/host/${host}`) await new Promise((done) => setTimeout(done, 2));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        return performance.now() - begun;
      }, `host-000${turn + 1}`));
    }
    figures.pool_host_ms = median(chosen);
  });
  for (const name of ["pool_first_paint_ms", "rollout_first_paint_ms"]) assert.ok(figures[name] < PAINT_MAX_MS, `${name}: ${figures[name]}`);
  for (const name of ["pool_sort_ms", "pool_filter_ms", "pool_slice_ms", "pool_host_ms"]) assert.ok(figures[name] < INTERACTION_MAX_MS, `${name}: ${figures[name]}`);
});
