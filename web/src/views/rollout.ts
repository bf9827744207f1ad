// A staged rollout: its bundle, stages, guards with their bounds, and history.

import { get, type Guard, type Judgement, type Rollout, type Stage } from "../api";
import { cards, h, list, readAt, type Card, type Child } from "../dom";
import { count, duration, percent, time } from "../format";
import { SortedTable, type Kept } from "../table";

const history: Kept = {};

const share = (ppm: number) => percent(ppm / 1e6, ppm % 10_000 === 0 ? 0 : 2);

/** A figure of a guard in its unit. */
function figure(value: number, unit: Guard["unit"]): string {
  const short = (number: number) => (number === 0 ? "0" : Number(number.toPrecision(3)).toString());
  if (unit === "ratio") return `${short(value * 100)} %`;
  if (unit === "ratio_per_min") return `${short(value * 100)} %/min`;
  return unit === "per_job_day" ? `${short(value)} /job-day` : short(value);
}

/** How much worse the guard lets machines with the bundle do. */
function allowed(guard: Guard, judgement: Judgement | undefined): string {
  const { margin, unit } = guard;
  const bound = judgement?.measured ? figure(judgement.measured.margin, unit) : "absolute" in margin ? figure(margin.absolute, unit) : `${percent(margin.relative)} of control`;
  return guard.limit === null ? bound : `${bound}, or any within ${figure(guard.limit, unit)}`;
}

function mark(verdict: string | undefined): HTMLElement {
  const kind = verdict === "breach" ? "bad" : verdict === "pass" ? "good" : "dim";
  return h("span", { class: kind }, verdict ?? "not judged");
}

/** An interval: the long unit is written once. */
function interval(low: number, high: number, unit: Guard["unit"]): string {
  return unit === "per_job_day" ? `${figure(low, "number")} to ${figure(high, unit)}` : `${figure(low, unit)} to ${figure(high, unit)}`;
}

function guards(rollout: Rollout, stage: Stage): HTMLElement {
  const judgements = new Map(stage.evaluation?.judgements.map((judgement) => [judgement.guard, judgement]));
  const row = (guard: Guard): Child[] => {
    const judgement = judgements.get(guard.name);
    const measured = judgement?.measured;
    const value = (of: number | undefined) => (of === undefined ? "-" : figure(of, guard.unit));
    const name = h("div", {}, guard.name, h("small", {}, `${guard.watches}${guard.meaning ? `: ${guard.meaning}` : ""}`), judgement ? h("small", { class: "why" }, judgement.why) : null);
    const harm = measured ? interval(measured.harm_lower, measured.harm_upper, guard.unit) : "-";
    return [name, mark(judgement?.verdict), harm, allowed(guard, judgement), value(measured?.control), value(measured?.treated), guard.proof ? "yes" : "no"];
  };
  return list("Guards", ["guard", "verdict", "harm, bounds", "allowed", "control", "bundle", "proof"], rollout.guards.map(row), ["name", "text", "number", "number", "number", "number", "text"], "stacked");
}

function stages(rollout: Rollout, chosen: number): HTMLElement {
  const row = (stage: Stage, index: number): Child[] => {
    const choose = h("a", { href: `#rollout/stage/${index}`, ...(index === chosen ? { "aria-current": "true" } : {}) }, stage.name);
    const where = stage.clusters.length > 0 ? h("small", {}, `of ${stage.clusters.join(", ")}`) : null;
    const found = stage.evaluation;
    const kind = stage.is === "rolled back" ? "bad" : stage.is === "done" ? "good" : stage.is === "current" || stage.is === "stopped" ? "now" : "dim";
    const evidence = `${found ? duration(found.covered_ms / 1000) : "-"} of ${duration(stage.least_ms / 1000)}`;
    return [h("div", {}, choose, where), h("span", { class: kind }, stage.is), share(stage.share_ppm), found ? count(found.treated_machines) : "-", found ? count(found.control_machines) : "-", evidence, stage.proof ? "proof" : "no harm shown"];
  };
  return list("Stages", ["stage", "state", "share", "hosts", "control", "evidence", "needs"], rollout.stages.map(row), ["name", "text", "number", "number", "number less", "number less", "text less"]);
}

function verdict(rollout: Rollout): HTMLElement {
  const { is, phase, place, rollout: id, bundle } = rollout;
  const last = [...rollout.steps].reverse().find((step) => step.what !== "nothing to decide");
  const kind = is === "rolled_back" ? "verdict broken" : is === "stopped" ? "verdict none" : "verdict";
  const lines = [`Rollout ${id} of bundle ${bundle} is ${phase}, in ${place}.`];
  if (last) lines.push(`Last step, ${time(last.until_unix_ms / 1000)}: ${last.what}, ${last.why}.`);
  if (rollout.published_agrees === false) lines.push("The published assignment differs: the next thermocline rollout step publishes it again.");
  if (rollout.published_problem !== null) lines.push(`What is published could not be verified: ${rollout.published_problem}. See --rollout-root.`);
  return h("div", { class: kind }, ...lines.map((line) => h("p", {}, line)));
}

function figures(rollout: Rollout, stage: Stage): Card[] {
  const found = stage.evaluation;
  const other = rollout.previous === null ? "others follow their configuration file" : `others follow bundle ${rollout.previous}`;
  return [
    ["Bundle", String(rollout.bundle), rollout.bundle_id === null ? other : `${rollout.bundle_id}; ${other}`],
    ["Stage", `${rollout.stage + 1} of ${rollout.stages.length}`, `since ${time(rollout.since_unix_ms / 1000)}`],
    ["Hosts with the bundle", found ? count(found.treated_machines) : "-", found ? `${percent(found.following, 0)} report it; ${percent(rollout.following_min, 0)} are needed` : "not evaluated yet"],
    ["Control hosts", found ? count(found.control_machines) : "-", `${share(rollout.control_ppm)} of the fleet; ${count(rollout.machines_min)} are needed`],
    ["Evidence", found ? duration(found.covered_ms / 1000) : "-", `of ${duration(stage.least_ms / 1000)}`],
    ["False rollbacks", percent(rollout.false_rollbacks), "probability, over all stages and guards"],
  ];
}

function steps(rollout: Rollout): HTMLElement {
  const at = (row: number) => rollout.steps[row] as Rollout["steps"][number];
  const when = (row: number) => time(at(row).until_unix_ms / 1000).replace(" UTC", "");
  return new SortedTable({
    label: "History",
    rows: rollout.steps.length,
    sortedBy: 0,
    kept: history,
    found: (row) => `${at(row).stage} ${at(row).what} ${at(row).why}`,
    columns: [
      { title: "time, UTC", kind: "text", text: when, key: (row) => at(row).until_unix_ms },
      { title: "stage", kind: "text", text: (row) => at(row).stage, key: (row) => at(row).stage, less: true },
      { title: "step", kind: "text", text: (row) => (at(row).count === 1 ? at(row).what : `${at(row).what}, ${count(at(row).count)} times`), key: (row) => at(row).what, mark: (row) => (at(row).what === "rolled back" ? "bad" : "") },
      { title: "reason", kind: "name", text: (row) => at(row).why, key: (row) => at(row).why },
    ],
  }).element;
}

export async function rolloutView(parts: string[]): Promise<Node[]> {
  const rollout = await get<Rollout>("rollout");
  const chosen = parts[0] === "stage" ? Number(parts[1]) : rollout.stage;
  const [current, stage] = [rollout.stages[rollout.stage], rollout.stages[chosen]];
  if (current === undefined || stage === undefined) throw new Error(`There is no stage with the number ${parts[1] ?? rollout.stage}. Choose one of the list in the view Rollout.`);
  const evaluated = stage.evaluated_unix_ms === null ? "This stage was not evaluated yet, or before the steps that are listed." : `Evaluated ${time(stage.evaluated_unix_ms / 1000)}: ${stage.decision ?? ""}.`;
  const nodes: Node[] = [
    verdict(rollout),
    readAt(`Read ${time(rollout.read_unix_ms / 1000)}`),
    cards(figures(rollout, current)),
    h("h2", {}, "Stages"),
    h("p", { class: "dim" }, "Hosts: those with the bundle that had reported at the stage's last evaluation. A name shows the guards of that evaluation."),
    stages(rollout, chosen),
    h("h2", {}, `Guards in ${stage.name}`),
    h("p", { class: "dim" }, `${evaluated} A guard is breached if the lower bound of the harm is above what is allowed, and passes if the upper bound is below it.`),
    guards(rollout, stage),
  ];
  if (rollout.knobs !== null && rollout.knobs.length > 0) {
    nodes.push(h("h2", {}, "What the bundle sets"), list("Knobs of the bundle", ["knob", "value"], rollout.knobs, ["name", "text"]));
  }
  nodes.push(h("h2", {}, "History"), h("p", { class: "dim" }, "Holds of a stage in a row are one line, with the time and the reason of the last."), steps(rollout));
  if (rollout.steps_left_out > 0) nodes.push(h("p", { class: "dim" }, `${count(rollout.steps_left_out)} earlier steps are not listed; thermocline rollout status --last shows them.`));
  return nodes;
}
