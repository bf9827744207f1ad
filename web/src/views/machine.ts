// One machine: what its agent saved, and what its jobs felt.

import { get, type Machine, type MachineJobPoints } from "../api";
import { cards, h, type Card } from "../dom";
import { duration, money, percent, size, time } from "../format";
import { draw } from "../plot";
import { SortedTable } from "../table";
import { failure } from "./failure";

/** A rate above this share of the objective is drawn here: one spike must not flatten all else. */
const RATE_MAX = 3;

function figures(machine: Machine): Card[] {
  const all: Card[] = [];
  const saved = machine.saved_mean_bytes;
  if (saved !== null) {
    const share = machine.dram_bytes === null ? "" : `${percent(saved / machine.dram_bytes)} of ${size(machine.dram_bytes)}`;
    all.push(["Saved, mean, net", size(saved), share, saved > 0 ? "" : "bad"]);
  }
  if (machine.saved_worth !== null) all.push(["Worth of it", money(machine.saved_worth), "at the price that the operator gave"]);
  const broken = machine.jobs.filter((job) => job.breaks_objective).length;
  const judged = machine.jobs.filter((job) => job.periods > 0).length;
  all.push(["Objective", judged === 0 ? "-" : broken === 0 ? "kept" : "broken", `${judged} jobs with far memory`, broken > 0 ? "bad" : judged > 0 ? "good" : ""]);
  all.push(["Jobs", String(machine.jobs.length + machine.jobs_left_out), `Linux ${machine.kernel}`]);
  all.push(["Recorded", duration((machine.ends_unix_ms - machine.begins_unix_ms) / 1000), `until ${time(machine.ends_unix_ms / 1000)}`]);
  return all;
}

function jobPlots({ points }: MachineJobPoints): HTMLElement {
  const x = points.map((point) => point.unix_ms / 1000);
  const memory = draw({
    title: "Memory",
    note: "charged to the job, and in far memory, uncompressed",
    x,
    overTime: true,
    value: size,
    lines: [
      { label: "memory", colour: "--memory", values: points.map((point) => point.memory_bytes) },
      { label: "far", colour: "--far", values: points.map((point) => point.far_bytes) },
    ],
  });
  const rates = points.map((point) => (point.of_objective_ratio === null ? null : Math.min(point.of_objective_ratio, RATE_MAX)));
  if (rates.every((rate) => rate === null)) {
    return h("div", { class: "plots" }, memory, h("p", { class: "dim" }, "This job has no promotion rate to judge: it had no far memory, or its policy has no such objective."));
  }
  const promotions = draw({
    title: "Promotion rate",
    note: `as a share of the objective; higher than ${RATE_MAX * 100} % is drawn there`,
    x,
    overTime: true,
    value: (value) => percent(value, 0),
    lines: [{ label: "rate", colour: "--far", values: rates }],
    limit: { value: 1, label: "objective" },
  });
  return h("div", { class: "plots" }, memory, promotions);
}

export async function machineView(parts: string[]): Promise<Node[]> {
  const machine = await get<Machine>("machine");
  const verdict = h("div", { class: machine.broken || (machine.saved_mean_bytes ?? 1) <= 0 ? "verdict broken" : "verdict" }, ...machine.verdict.map((line) => h("p", {}, line)));
  const nodes: Node[] = [verdict, cards(figures(machine))];
  if (machine.saved.length > 0) {
    const saved = { label: "saved", colour: "--far", values: machine.saved.map((sample) => sample.bytes) };
    const x = machine.saved.map((sample) => sample.unix_ms / 1000);
    nodes.push(draw({ title: "DRAM saved, net", note: "of compressed copies and of the agent", x, overTime: true, value: size, lines: [saved] }));
  }
  const jobs = machine.jobs;
  const chosen = parts[0] === "job" ? Number(parts[1]) : null;
  const at = (row: number) => jobs[row] as Machine["jobs"][number];
  const over = (row: number) => (at(row).periods === 0 ? null : at(row).periods_over / at(row).periods);
  const table = new SortedTable({
    label: "Jobs of the machine",
    rows: jobs.length,
    sortedBy: 5,
    selected: chosen,
    found: (row) => `${at(row).job} ${at(row).class} ${at(row).policy}`,
    choose: (row) => (location.hash = `#machine/job/${row}`),
    columns: [
      { title: "job", kind: "name", text: (row) => at(row).job, key: (row) => at(row).job },
      { title: "class", kind: "text", text: (row) => at(row).class, key: (row) => at(row).class, less: true },
      { title: "policy", kind: "text", text: (row) => at(row).policy, key: (row) => at(row).policy, less: true },
      { title: "memory", kind: "number", text: (row) => size(at(row).memory_bytes), key: (row) => at(row).memory_bytes },
      { title: "far", kind: "number", text: (row) => size(at(row).far_bytes), key: (row) => at(row).far_bytes },
      { title: "saved", kind: "number", text: (row) => size(at(row).saved_mean_bytes), key: (row) => at(row).saved_mean_bytes },
      { title: "over", kind: "number", text: (row) => percent(over(row)), key: over, mark: (row) => (at(row).breaks_objective ? "bad" : "") },
    ],
  });
  nodes.push(h("h2", {}, "Jobs"), h("p", { class: "dim" }, "Memory and far memory at the end, savings on average; over: share of the periods over the promotion objective. A name shows the job over time."));
  const detail = h("section", { "aria-live": "polite" });
  if (chosen !== null) {
    const points = await get<MachineJobPoints>(`machine/job/${chosen}`).catch((error: unknown) => failure(error));
    if (points instanceof Node) detail.append(points);
    else detail.append(h("h2", {}, points.job), jobPlots(points));
  }
  nodes.push(detail, table.element);
  if (machine.jobs_left_out > 0) nodes.push(h("p", { class: "dim" }, `${machine.jobs_left_out} jobs that saved less are not listed.`));
  if (machine.events.length > 0) {
    const rows = [...machine.events].reverse().map((event) => h("tr", {}, h("td", { class: "dim" }, time(event.unix_ms / 1000)), h("td", {}, event.job ?? ""), h("td", {}, event.what)));
    const before = machine.events_left_out > 0 ? h("p", { class: "dim" }, `${machine.events_left_out} earlier ones are left out.`) : null;
    nodes.push(h("h2", {}, "Events"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Events" }, h("table", { class: "list events" }, h("tbody", {}, ...rows))));
    if (before) nodes.push(before);
  }
  return nodes;
}
