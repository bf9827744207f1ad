// Plots over time and over other axes.

import uPlot from "uplot";
import { h } from "./dom";
import { time } from "./format";

export interface Line {
  label: string;
  /** A colour of the page, or any CSS colour. */
  colour: string;
  values: (number | null)[];
  dashed?: boolean;
}

export interface Plot {
  title: string;
  note?: string;
  /** Ascending. Seconds since the epoch if `overTime`. */
  x: number[];
  lines: Line[];
  overTime: boolean;
  /** How a value of the vertical axis is written. */
  value: (value: number) => string;
  /** How a position on the horizontal axis is written; times need none. */
  position?: (value: number) => string;
  /** A horizontal line. */
  limit?: { value: number; label: string };
  /** The highest value of the vertical axis. */
  top?: number;
  logarithmic?: boolean;
  /** The positions that are marked on the horizontal axis. */
  marks?: number[];
}

const HEIGHT = 240;
/** Width of the vertical axis: room for "0.01 %/min". */
const AXIS = 92;
/** Room to the right of a plot over other axes than time, whose last label is centred at the edge. */
const EDGE = 32;
/** The least distance between two marks: their labels must not touch. */
const MARK = 52;

/** As many marks as there is room for, at equal distances. */
function fitting(marks: number[], width: number): number[] {
  const room = Math.max(1, Math.floor((width - AXIS - EDGE) / MARK));
  const step = Math.ceil(marks.length / room);
  return marks.filter((_, index) => index % step === 0);
}

/** Colours of lines that are many: each has a contrast of 3 or more with either background. */
export const COLOURS = ["#2f81d6", "#d1632a", "#3b9150", "#a463c9", "#b8860b", "#c2507f", "#5b8c9e", "#8a7a5c"];

function colour(name: string): string {
  return name.startsWith("--") ? getComputedStyle(document.documentElement).getPropertyValue(name).trim() : name;
}

/** The text for those who do not see the plot: first, lowest, highest and last value of each line. */
function described(plot: Plot): string {
  const lines = plot.lines.map((line) => {
    const known = line.values.filter((value): value is number => value !== null);
    const [first, last] = [known[0], known[known.length - 1]];
    if (first === undefined || last === undefined) return `${line.label}: no value`;
    const [lowest, highest] = known.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [first, first]);
    const [a, b, c, d] = [first, lowest, highest, last].map(plot.value);
    return `${line.label}: first ${a}, lowest ${b}, highest ${c}, last ${d}`;
  });
  const limit = plot.limit ? `; ${plot.limit.label}: ${plot.value(plot.limit.value)}` : "";
  return `${plot.title}. ${lines.join("; ")}${limit}. Left and right arrow keys read single values.`;
}

function options(plot: Plot, width: number): uPlot.Options {
  const [text, grid] = [colour("--dim"), colour("--line")];
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui, sans-serif" };
  const at = plot.position ?? String;
  const horizontal = plot.overTime ? axis : { ...axis, values: (_: uPlot, values: number[]) => values.map(at) };
  const lines = plot.limit ? [...plot.lines, { label: plot.limit.label, colour: "--bad", values: [], dashed: true }] : plot.lines;
  return {
    width,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    padding: [null, plot.overTime ? null : EDGE, null, null],
    cursor: { y: false },
    scales: {
      x: { time: plot.overTime },
      y: plot.logarithmic
        ? { distr: 3 }
        : { range: (_, low, high) => [Math.min(low ?? 0, 0), plot.top ?? (high !== null && high > 0 ? high * 1.05 : 1)] },
    },
    axes: [
      plot.marks ? { ...horizontal, splits: (self: uPlot) => fitting(plot.marks ?? [], self.width) } : horizontal,
      { ...axis, size: AXIS, values: (_, values) => values.map((value) => (value === null ? "" : plot.value(value))) },
    ],
    series: [
      { value: (_, value) => (value === null ? "-" : plot.overTime ? time(value) : at(value)), label: plot.overTime ? "time" : "at" },
      ...lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        width: 2,
        points: { show: plot.x.length < 3 },
        ...(line.dashed ? { dash: [8, 6] } : {}),
        value: (_: uPlot, value: number | null) => (value === null ? "-" : plot.value(value)),
      })),
    ],
  };
}

/** Draws as soon as the figure is on the page, and again when its width changes. */
export function draw(plot: Plot): HTMLElement {
  const place = h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": described(plot) });
  const caption = h("figcaption", {}, plot.title, plot.note === undefined ? null : h("small", {}, plot.note));
  const figure = h("figure", {}, caption, place);
  const limit = plot.limit;
  const data: uPlot.AlignedData = [plot.x, ...plot.lines.map((line) => line.values), ...(limit ? [plot.x.map(() => limit.value)] : [])];
  let drawn: uPlot | null = null;
  let position = 0;
  const observer = new ResizeObserver(() => {
    const width = Math.floor(place.clientWidth);
    if (width === 0) return;
    if (drawn === null) {
      drawn = new uPlot(options(plot, width), data, place);
    } else if (drawn.width !== width) {
      drawn.setSize({ width, height: HEIGHT });
    }
    // A figure that was taken off the page is not drawn again.
    if (!place.isConnected) observer.disconnect();
  });
  observer.observe(place);
  place.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const x = plot.x;
    if (step === undefined || drawn === null || x.length === 0) return;
    position = Math.max(0, Math.min(x.length - 1, position + step * (event.shiftKey ? 10 : 1)));
    drawn.setCursor({ left: drawn.valToPos(x[position] ?? 0, "x"), top: 0 });
    event.preventDefault();
  });
  return figure;
}
