// A fleet over time: coverage, promotion rates against the objective, savings; whole and by cluster.

import { get, type Fleet, type Part, type PartDetail } from "../api";
import { cards, h, type Card } from "../dom";
import { count, duration, money, percent, rate, size, time } from "../format";
import { COLOURS, draw } from "../plot";
import { SortedTable } from "../table";

/** Clusters with a line of their own: the largest. */
const LINES_MAX = 7;

export function figures(part: Part, fleet: Fleet): Card[] {
  const objective = `${percent(fleet.objective_percentile_ratio, 0)} of ${count(part.entries_on)} entries with far memory; objective ${rate(fleet.objective_ratio_per_min)}`;
  const all: Card[] = [
    ["Coverage", percent(part.coverage_ratio), "far memory as a share of cold memory"],
    ["Saved, mean, net", size(part.saved_bytes), `${percent(part.memory_bytes > 0 ? part.saved_bytes / part.memory_bytes : null)} of ${size(part.memory_bytes)} in jobs`],
  ];
  if (part.saved_worth !== null) all.push(["Worth of it", money(part.saved_worth), `at ${money(fleet.price_per_gib ?? 0)} for a GiB`]);
  all.push(
    ["Promotion rate", rate(part.rate_ratio_per_min), objective, part.holds === false ? "bad" : part.holds ? "good" : ""],
    ["Jobs", count(part.jobs), `on ${count(part.machines)} machines`],
  );
  return all;
}

export function verdict(part: Part, fleet: Fleet): HTMLElement {
  const span = `${time(fleet.begins_unix_seconds)} to ${time(fleet.ends_unix_seconds)}, ${duration(fleet.ends_unix_seconds - fleet.begins_unix_seconds)}; ${count(fleet.entries)} entries in all.`;
  const share = percent(fleet.objective_percentile_ratio, 0);
  if (part.holds === null) {
    const text = "No job had far memory in this time. The view What if shows what other parameters would save.";
    return h("div", { class: "verdict none" }, h("p", {}, text), h("p", { class: "dim" }, span));
  }
  const found = rate(part.rate_ratio_per_min);
  const text = part.holds
    ? `The promotion objective was kept: ${share} of the entries were at or below ${found}, of ${rate(fleet.objective_ratio_per_min)} allowed.`
    : `The promotion objective was broken: ${share} of the entries were at or below ${found === "-" ? "no bound" : found}, and ${rate(fleet.objective_ratio_per_min)} is allowed.`;
  return h("div", { class: part.holds ? "verdict" : "verdict broken" }, h("p", {}, text), h("p", { class: "dim" }, span));
}

/** The cumulative distribution of promotion rates: how many entries are at or below a rate. */
function distribution(detail: PartDetail, fleet: Fleet): HTMLElement {
  const known = detail.rates.filter((point) => point.rate_ratio_per_min !== null);
  if (known.length === 0) return h("p", { class: "dim" }, "There are no promotion rates: no entry had far memory.");
  return draw({
    title: "Promotion rates",
    note: "the rate at or below which a share of the entries with far memory lies; logarithmic",
    x: known.map((point) => point.share_ratio),
    overTime: false,
    logarithmic: true,
    value: rate,
    position: (share) => percent(share, share > 0.99 ? 2 : 0),
    lines: [{ label: "rate", colour: "--far", values: known.map((point) => point.rate_ratio_per_min) }],
    limit: { value: fleet.objective_ratio_per_min, label: `objective, for ${percent(fleet.objective_percentile_ratio, 0)}` },
  });
}

function plots(detail: PartDetail, fleet: Fleet): HTMLElement {
  const { series } = detail;
  const step = `means of ${duration(series.step_seconds)}`;
  const saved = draw({ title: "Saved, net", note: step, x: series.unix_seconds, overTime: true, value: size, lines: [{ label: "saved", colour: "--far", values: series.saved_bytes }] });
  const memory = draw({
    title: "Memory",
    note: `charged to jobs, cold, and in far memory; ${step}`,
    x: series.unix_seconds,
    overTime: true,
    value: size,
    lines: [
      { label: "memory", colour: "--memory", values: series.memory_bytes },
      { label: "cold", colour: "#b8860b", values: series.cold_bytes },
      { label: "far", colour: "--far", values: series.far_bytes },
    ],
  });
  return h("div", { class: "plots" }, saved, distribution(detail, fleet), memory);
}

/** Coverage of the fleet and of its largest clusters, on one axis of time. */
async function coverage(fleet: Fleet, whole: PartDetail): Promise<HTMLElement> {
  const largest = fleet.clusters
    .map((cluster, index) => ({ cluster, index }))
    .sort((a, b) => b.cluster.cold_bytes - a.cluster.cold_bytes)
    .slice(0, fleet.clusters.length > 1 ? LINES_MAX : 0);
  const details = await Promise.all(largest.map(({ index }) => get<PartDetail>(`fleet/cluster/${index}`)));
  const x = whole.series.unix_seconds;
  const lines = details.map((detail, line) => {
    const steps = new Map(detail.series.unix_seconds.map((at, index) => [at, detail.series.coverage_ratio[index] ?? null]));
    // A cluster with shorter steps than the fleet is read at the fleet's.
    const values = x.map((at) => steps.get(at) ?? null);
    return { label: largest[line]?.cluster.name ?? "", colour: COLOURS[line % COLOURS.length] ?? "--memory", values };
  });
  const fewer = fleet.clusters.length > LINES_MAX ? `; the ${LINES_MAX} clusters with most cold memory` : "";
  return draw({
    title: "Coverage over time",
    note: `far memory as a share of cold memory; means of ${duration(whole.series.step_seconds)}${fewer}`,
    x,
    overTime: true,
    top: 1,
    value: (value) => percent(value, 0),
    lines: [...lines, { label: "fleet", colour: "--text", values: whole.series.coverage_ratio }],
  });
}

function clusters(fleet: Fleet, chosen: number | null): HTMLElement {
  const at = (row: number) => fleet.clusters[row] as Part;
  const worth = fleet.price_per_gib === null ? [] : [{ title: "worth", kind: "number" as const, text: (row: number) => money(at(row).saved_worth ?? 0), key: (row: number) => at(row).saved_worth }];
  return new SortedTable({
    label: "Clusters",
    rows: fleet.clusters.length,
    sortedBy: 4,
    selected: chosen,
    choose: (row) => (location.hash = `#fleet/cluster/${row}`),
    columns: [
      { title: "cluster", kind: "name", text: (row) => at(row).name, key: (row) => at(row).name },
      { title: "machines", kind: "number", text: (row) => count(at(row).machines), key: (row) => at(row).machines, less: true },
      { title: "jobs", kind: "number", text: (row) => count(at(row).jobs), key: (row) => at(row).jobs, less: true },
      { title: "coverage", kind: "number", text: (row) => percent(at(row).coverage_ratio), key: (row) => at(row).coverage_ratio },
      { title: "saved", kind: "number", text: (row) => size(at(row).saved_bytes), key: (row) => at(row).saved_bytes },
      ...worth,
      { title: "rate", kind: "number", text: (row) => rate(at(row).rate_ratio_per_min), key: (row) => at(row).rate_ratio_per_min, mark: (row) => (at(row).holds === false ? "bad" : "") },
    ],
  }).element;
}

export async function fleetView(parts: string[]): Promise<Node[]> {
  const fleet = await get<Fleet>("fleet");
  const chosen = parts[0] === "cluster" ? Number(parts[1]) : null;
  const part = chosen === null ? fleet.fleet : fleet.clusters[chosen];
  if (part === undefined) throw new Error(`There is no cluster with the number ${parts[1]}. Choose one of the list in the view Fleet.`);
  const [whole, detail] = await Promise.all([get<PartDetail>("fleet/series"), get<PartDetail>(chosen === null ? "fleet/series" : `fleet/cluster/${chosen}`)]);
  const heading = chosen === null ? h("h2", {}, "All clusters") : h("h2", {}, `Cluster ${part.name} `, h("a", { href: "#fleet" }, "all clusters"));
  const over = chosen === null ? await coverage(fleet, whole) : draw({
    title: "Coverage over time",
    note: `far memory as a share of cold memory; means of ${duration(detail.series.step_seconds)}`,
    x: detail.series.unix_seconds,
    overTime: true,
    top: 1,
    value: (value) => percent(value, 0),
    lines: [{ label: "coverage", colour: "--far", values: detail.series.coverage_ratio }],
  });
  const nodes: Node[] = [heading, verdict(part, fleet), cards(figures(part, fleet)), over, plots(detail, fleet), h("h2", {}, "Clusters"), clusters(fleet, chosen)];
  if (fleet.clusters_left_out > 0) {
    nodes.push(h("p", { class: "dim" }, `${count(fleet.clusters_left_out)} more clusters count in the figures of the fleet and have no line here.`));
  }
  return nodes;
}
