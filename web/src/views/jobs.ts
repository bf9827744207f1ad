// The jobs of a fleet, and one job over time.

import { get, type Fleet, type JobDetail, type Jobs } from "../api";
import { h } from "../dom";
import { count, duration, percent, rate, size } from "../format";
import { draw } from "../plot";
import { SortedTable } from "../table";
import { failure } from "./failure";

function job(detail: JobDetail): Node[] {
  const { series } = detail;
  const note = `means of ${duration(series.step_seconds)}`;
  const common = { x: series.unix_seconds, overTime: true };
  const memory = {
    ...common,
    title: "Memory",
    note: `charged to the job, cold, and in far memory; ${note}`,
    value: size,
    lines: [
      { label: "memory", colour: "--memory", values: series.memory_bytes },
      { label: "cold", colour: "#b8860b", values: series.cold_bytes },
      { label: "far", colour: "--far", values: series.far_bytes },
    ],
  };
  const coverage = { ...common, title: "Coverage over time", note, top: 1, value: (value: number) => percent(value, 0), lines: [{ label: "coverage", colour: "--far", values: series.coverage_ratio }] };
  return [
    h("h2", {}, detail.job),
    h("p", { class: "dim" }, `class ${detail.class}, on ${detail.machine} in ${detail.cluster}`),
    h("div", { class: "plots" }, draw(coverage), draw(memory)),
  ];
}

export async function jobsView(parts: string[]): Promise<Node[]> {
  const [fleet, jobs] = await Promise.all([get<Fleet>("fleet"), get<Jobs>("fleet/jobs")]);
  const chosen = parts[0] === undefined ? null : Number(parts[0]);
  const cluster = (row: number) => {
    const index = jobs.cluster[row] ?? null;
    return index === null ? "-" : (fleet.clusters[index]?.name ?? "-");
  };
  const number = (column: number[]) => (row: number) => column[row] ?? 0;
  const known = (column: (number | null)[]) => (row: number) => column[row] ?? null;
  const word = (column: string[]) => (row: number) => column[row] ?? "";
  const [coverage, promotions] = [known(jobs.coverage_ratio), known(jobs.rate_ratio_per_min)];
  const table = new SortedTable({
    label: "Jobs of the fleet",
    rows: jobs.job.length,
    sortedBy: 7,
    selected: chosen,
    found: (row) => `${word(jobs.job)(row)} ${cluster(row)} ${word(jobs.machine)(row)} ${word(jobs.class)(row)}`,
    choose: (row) => (location.hash = `#jobs/${row}`),
    columns: [
      { title: "job", kind: "name", text: word(jobs.job), key: word(jobs.job) },
      { title: "cluster", kind: "text", text: cluster, key: cluster, less: true },
      { title: "machine", kind: "text", text: word(jobs.machine), key: word(jobs.machine), less: true },
      { title: "class", kind: "text", text: word(jobs.class), key: word(jobs.class), less: true },
      { title: "observed", kind: "number", text: (row) => duration(number(jobs.seconds)(row)), key: number(jobs.seconds), less: true },
      { title: "memory", kind: "number", text: (row) => size(number(jobs.memory_bytes)(row)), key: number(jobs.memory_bytes) },
      { title: "far", kind: "number", text: (row) => size(number(jobs.far_bytes)(row)), key: number(jobs.far_bytes), less: true },
      { title: "saved", kind: "number", text: (row) => size(number(jobs.saved_bytes)(row)), key: number(jobs.saved_bytes) },
      { title: "coverage", kind: "number", text: (row) => percent(coverage(row)), key: coverage },
      {
        title: "rate",
        kind: "number",
        text: (row) => rate(promotions(row)),
        key: promotions,
        mark: (row) => ((promotions(row) ?? 0) > fleet.objective_ratio_per_min ? "bad" : ""),
      },
    ],
  });
  const detail = h("section", { "aria-live": "polite" });
  if (chosen !== null) {
    const found = await get<JobDetail>(`fleet/job/${chosen}`).catch((error: unknown) => failure(error));
    detail.append(...(found instanceof Node ? [found] : job(found)));
  }
  const share = percent(fleet.objective_percentile_ratio, 0);
  const text = `Means over each job's time; rate: at or below which ${share} of its entries with far memory lie, marked above the objective of ${rate(fleet.objective_ratio_per_min)}. A name shows the job over time.`;
  const nodes: Node[] = [detail, h("h2", {}, "Jobs"), h("p", { class: "dim" }, text), table.element];
  if (jobs.left_out > 0) nodes.push(h("p", { class: "dim" }, `${count(jobs.left_out)} more jobs count in the figures of their clusters and are not listed.`));
  return nodes;
}
