// The page: which view is shown, the state of what is read, the token.

import { forget, get, hasToken, isReport, setToken, TokenNeeded, type Status } from "./api";
import { h } from "./dom";
import { time } from "./format";
import { failure } from "./views/failure";
import { fleetView } from "./views/fleet";
import { jobsView } from "./views/jobs";
import { machineView } from "./views/machine";
import { poolView } from "./views/pool";
import { rolloutView } from "./views/rollout";
import { forgetChoice, whatIfView } from "./views/whatif";

type View = (parts: string[]) => Promise<Node[]>;

/** `live`: its source is read again and again. */
const VIEWS: Record<string, { title: string; view: View; source: "machine" | "fleet" | "what_if" | "rollout" | "pool"; live?: boolean }> = {
  machine: { title: "Machine", view: machineView, source: "machine" },
  fleet: { title: "Fleet", view: fleetView, source: "fleet" },
  jobs: { title: "Jobs", view: jobsView, source: "fleet" },
  "what-if": { title: "What if", view: whatIfView, source: "what_if" },
  rollout: { title: "Rollout", view: rolloutView, source: "rollout", live: true },
  pool: { title: "Pool", view: poolView, source: "pool", live: true },
};

/** Time between two questions for the state: short while something is being read. */
const POLL_READING_MS = 1_000;
const POLL_LIVE_MS = 5_000;
const POLL_MS = 30_000;

const content = document.getElementById("content") as HTMLElement;
const footer = document.getElementById("footer") as HTMLElement;

let status: Status | null = null;
/** Counts what was asked to be shown, so that a slow answer does not replace a later view. */
let shown = 0;

/** The view of the address; without one, the first that has something to show. */
function place(): [string, string[]] {
  const [name, ...parts] = location.hash.slice(1).split("/");
  if (name !== undefined && name in VIEWS) return [name, parts];
  const first = (["machine", "fleet", "rollout", "pool"] as const).find((source) => status !== null && status[source].state !== "absent");
  return [first ?? "machine", []];
}

function askForToken(): void {
  const input = h("input", { type: "password", autocomplete: "off", required: true, id: "token" });
  const submit = (event: Event) => {
    event.preventDefault();
    setToken(input.value.trim());
    void poll();
  };
  const wrong = hasToken() ? h("p", { class: "bad", role: "alert" }, "This token is not the right one.") : null;
  content.replaceChildren(
    h("section", { class: "panel" },
      h("h2", {}, "A token is needed"),
      h("p", {}, "The console was started with --token-file. Give the content of that file; it is kept until this tab is closed."),
      wrong,
      h("form", { class: "controls", submit }, h("label", {}, "Token", input), h("button", { class: "plain" }, "Continue"))));
  input.focus();
}

async function show(moved: boolean): Promise<void> {
  const [name, parts] = place();
  const { title, view, live } = VIEWS[name] as (typeof VIEWS)[string];
  const mine = ++shown;
  document.title = `${title} - Thermocline ${isReport ? "report" : "console"}`;
  document.querySelectorAll("#views a").forEach((link) => {
    if (link.getAttribute("href") === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  try {
    const nodes = await view(parts);
    if (mine !== shown) return;
    content.replaceChildren(...nodes);
  } catch (error) {
    if (mine !== shown) return;
    if (error instanceof TokenNeeded) return askForToken();
    content.replaceChildren(failure(error, live));
  }
  content.dataset["view"] = [name, ...parts].join("/");
  if (moved) {
    window.scrollTo(0, 0);
    content.focus({ preventScroll: true });
  }
}

/** Whether the view may be drawn again without a request: the focus is elsewhere. */
function idle(): boolean {
  const at = document.activeElement;
  return at === content || !content.contains(at);
}

/** Takes the links to what a report has not out of it. */
function leaveOutAbsent(status: Status): void {
  document.querySelectorAll("#views a").forEach((link) => {
    const view = VIEWS[(link.getAttribute("href") ?? "").slice(1)];
    if (view !== undefined && status[view.source].state === "absent") link.remove();
  });
}

/** Asks for the state, and shows the view again if what it shows has changed. */
async function poll(): Promise<void> {
  let wait = POLL_MS;
  try {
    const before = status;
    status = await get<Status>("status");
    footer.textContent = `Thermocline ${status.version}; ${status.read_unix_ms === null ? "reading" : `read ${time(status.read_unix_ms / 1000)}`}; read-only`;
    if (isReport) {
      leaveOutAbsent(status);
      return await show(false);
    }
    const [name] = place();
    const { source, live } = VIEWS[name] as (typeof VIEWS)[string];
    const again = before !== null && before.read_unix_ms !== null && before.read_unix_ms !== status.read_unix_ms;
    if (again) {
      forget();
      forgetChoice();
    }
    const newer = live === true && before !== null && before[source].read_unix_ms !== status[source].read_unix_ms && idle();
    if (before === null || again || newer || before[source].state !== status[source].state) await show(false);
    if (live) wait = POLL_LIVE_MS;
    if (status.read_unix_ms === null || status[source].state === "loading") wait = POLL_READING_MS;
  } catch (error) {
    if (error instanceof TokenNeeded) {
      status = null;
      return askForToken();
    }
    if (status === null) content.replaceChildren(failure(error));
    else footer.textContent = error instanceof Error ? error.message : String(error);
  }
  window.setTimeout(() => void poll(), wait);
}

window.addEventListener("show-again", () => void show(false).then(() => document.getElementById("again")?.focus()));
window.addEventListener("hashchange", () => void show(true));
void poll();
