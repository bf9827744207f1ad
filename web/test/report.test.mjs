// A report of a fleet: the console's page with its answers in one file, opened without a server.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { PROGRAM, browser, opened, page, picture, report, scratch, writeJournal } from "./setup.mjs";

const FLEET = process.env.CONSOLE_FLEET;

const out = join(scratch(), "fleet.html");
const url = `file://${out}`;
let chromium;
let said;

before(async () => {
  chromium = await browser();
  said = execFileSync(PROGRAM, ["report", writeJournal(scratch()), "--traces", FLEET, "--out", out], { encoding: "utf8" });
});

after(async () => {
  report("report.json", { page_bytes: statSync(out).size });
  await chromium?.close();
});

test("the verdict is said first", () => {
  assert.match(said, /^.*promotion objective/m);
  assert.match(said, /fleet: /);
  assert.ok(said.trim().endsWith(`written: ${out}`), said);
});

test("every view is there without a server, at a desk and on a phone", async () => {
  const made = JSON.parse(readFileSync(join(FLEET, "made.json"), "utf8"));
  const views = { machine: "shop-3.service", fleet: "cluster-0", jobs: `of ${made.jobs.toLocaleString("en")}`, "what-if": "Percentile K" };
  for (const [view, text] of Object.entries(views)) {
    for (const [name, options] of Object.entries({ desktop: {}, phone: { width: 400, height: 800 } })) {
      await opened(chromium, url, view, options, async (tab) => {
        const content = await tab.textContent("#content");
        assert.ok(content.includes(text), `${view}: no ${text} in ${content.slice(0, 500)}`);
        const overflow = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
        assert.ok(overflow <= 0, `${view} on a ${name} is ${overflow} px too wide`);
        const links = await tab.locator("#views a").allTextContents();
        assert.deepEqual(links, ["Machine", "Fleet", "Jobs", "What if"], "views without a source have no link");
        await tab.screenshot({ path: picture(`report-${view}-${name}`), fullPage: true });
      });
    }
  }
});

test("jobs that save most have a page, and others say where theirs is", async () => {
  await opened(chromium, url, "jobs", {}, async (tab) => {
    await tab.locator("td button.link").first().click();
    await tab.waitForFunction(() => document.querySelector("#content").dataset.view.startsWith("jobs/"));
    assert.ok((await tab.textContent("#content")).includes("Coverage over time"));
  });
  const jobs = JSON.parse(execFileSync(PROGRAM, ["--format", "json", "report", "--traces", FLEET], { encoding: "utf8", maxBuffer: 1 << 28 }));
  const listed = jobs["fleet/jobs"].job.length;
  const without = Array.from({ length: listed }, (_, index) => index).find((index) => jobs[`fleet/job/${index}`] === undefined);
  const { page: tab, close } = await page(chromium);
  await tab.goto(`${url}#jobs/${without}`);
  await tab.waitForFunction(() => document.querySelector("#content").textContent.includes("thermocline console"));
  await close();
});
