// What the fleet would save under other parameters. All combinations were replayed before: a slider only selects.

import { get, type Pair, type WhatIf } from "../api";
import { cards, h, type Card } from "../dom";
import { count, duration, money, percent, rate, size } from "../format";
import { draw } from "../plot";

/** Objective, percentile and warm-up, as indices. */
type Choice = [number, number, number];

/** What was chosen stays while other views are shown. */
let choice: Choice | null = null;

export function forgetChoice(): void {
  choice = null;
}

function pairAt(answers: WhatIf, [objective, percentile, warmup]: Choice): Pair {
  const warmups = answers.warmups_seconds.length;
  const index = (objective * answers.percentiles_ratio.length + percentile) * warmups + warmup;
  return answers.pairs[index] as Pair;
}

function best(answers: WhatIf, objective: number): Choice | null {
  const index = answers.best[objective] ?? null;
  if (index === null) return null;
  const warmups = answers.warmups_seconds.length;
  const within = index % (answers.percentiles_ratio.length * warmups);
  return [objective, Math.floor(within / warmups), within % warmups];
}

function change(value: number, before: number, text: (value: number) => string): string {
  return value === before ? "as configured" : `configured: ${text(before)}`;
}

function figures(pair: Pair, configured: Pair, objective: number, answers: WhatIf): Card[] {
  const share = percent(answers.objective_percentile_ratio, 0);
  const all: Card[] = [
    ["Saved, mean, net", size(pair.saved_bytes), change(pair.saved_bytes, configured.saved_bytes, size)],
    ["Of used memory", percent(pair.saved_ratio, 2), change(pair.saved_ratio, configured.saved_ratio, (value) => percent(value, 2))],
    ["Coverage", percent(pair.coverage_ratio), change(pair.coverage_ratio, configured.coverage_ratio, percent)],
    [`Rate, ${share} of entries`, rate(pair.rate_ratio_per_min), `objective ${rate(objective)}: ${pair.holds ? "kept" : "broken"}`, pair.holds ? "good" : "bad"],
    ["Rate, 99.5 % of entries", rate(pair.tail_ratio_per_min), "bursts"],
    ["Far memory on", percent(pair.on_ratio, 0), "of the entries"],
  ];
  if (pair.saved_worth !== undefined) all.splice(1, 0, ["Worth of it", money(pair.saved_worth), "at the price that the operator gave"]);
  return all;
}

/** Savings by percentile at the chosen objective and warm-up; those that break the objective are a line of their own. */
function byPercentile(answers: WhatIf, [objective, , warmup]: Choice): HTMLElement {
  const pairs = answers.percentiles_ratio.map((_, percentile) => pairAt(answers, [objective, percentile, warmup]));
  const x = answers.percentiles_ratio.map((_, index) => index);
  return draw({
    title: "Saved by percentile K",
    note: `at this warm-up and objective; a lower K promotes more`,
    x,
    marks: x,
    overTime: false,
    value: size,
    position: (index) => percent(answers.percentiles_ratio[Math.round(index)] ?? null, 1).replace(".0", ""),
    lines: [
      { label: "objective kept", colour: "--far", values: pairs.map((pair) => (pair.holds ? pair.saved_bytes : null)) },
      { label: "objective broken", colour: "--bad", values: pairs.map((pair) => (pair.holds ? null : pair.saved_bytes)) },
    ],
  });
}

interface Slider {
  element: HTMLElement;
  set: (index: number) => void;
}

function slider(label: string, note: string, values: string[], changed: (index: number) => void): Slider {
  const output = h("output", {});
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1 });
  const set = (index: number) => {
    input.value = String(index);
    output.textContent = values[index] ?? "";
    input.setAttribute("aria-valuetext", values[index] ?? "");
  };
  input.addEventListener("input", () => {
    set(Number(input.value));
    changed(Number(input.value));
  });
  return { element: h("label", {}, h("span", {}, `${label}: `, output), input, h("small", { class: "dim" }, note)), set };
}

export async function whatIfView(): Promise<Node[]> {
  const answers = await get<WhatIf>("what-if");
  if (answers.jobs === 0) throw new Error("The traces hold no job with entries. Name traces of a longer time with --traces.");
  const configured: Choice = [...answers.configured];
  let now: Choice = choice ?? configured;
  const result = h("section", { "aria-live": "polite" });
  const sliders = [
    slider("Objective P", "promotions per minute, as a share of the working set", answers.objectives_ratio_per_min.map((value) => rate(value)), (index) => update([index, now[1], now[2]])),
    slider("Percentile K", "of the past periods' best thresholds", answers.percentiles_ratio.map((value) => percent(value)), (index) => update([now[0], index, now[2]])),
    slider("Warm-up S", "time before a job's memory is offloaded", answers.warmups_seconds.map((value) => duration(value)), (index) => update([now[0], now[1], index])),
  ];
  function update(to: Choice): void {
    [now, choice] = [to, to];
    sliders.forEach((each, index) => each.set(to[index] ?? 0));
    const pair = pairAt(answers, to);
    const objective = answers.objectives_ratio_per_min[to[0]] ?? 0;
    const unresolved = pair.unresolved_ratio > 0 ? h("p", { class: "dim" }, `${percent(pair.unresolved_ratio)} of the entries had a threshold above the ages that their tracker distinguished: there the figures are no measurement.`) : null;
    const shown = [cards(figures(pair, pairAt(answers, configured), objective, answers)), byPercentile(answers, to)];
    result.replaceChildren(...shown, ...(unresolved ? [unresolved] : []));
  }
  const toBest = () => {
    const found = best(answers, now[0]);
    if (found) update(found);
    else result.prepend(h("p", { class: "bad", role: "alert" }, "No percentile and warm-up meets this objective. Choose a higher one."));
  };
  const buttons = h("div", { class: "controls" },
    h("button", { type: "button", class: "plain", click: toBest }, "Most savings within the objective"),
    h("button", { type: "button", class: "plain", click: () => update(configured) }, "As configured"));
  update(now);
  const text = `${count(answers.jobs)} jobs and ${count(answers.entries)} entries were replayed through the cold-age controller under ${count(answers.pairs.length)} combinations of its parameters. Nothing changes on any machine.`;
  return [h("h2", {}, "What if"), h("p", { class: "dim" }, text), h("div", { class: "sliders" }, ...sliders.map((each) => each.element)), buttons, result];
}
