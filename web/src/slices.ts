// The map of a pool's slices: one cell each, read by pointer or arrow keys.

import type { Pool, SliceMap } from "./api";
import { h } from "./dom";

/** Letters of the server, what they are, and the colour: a crossed cell can be seen without colours. */
export const STATES: Record<string, { text: string; colour: string; filled: boolean; crossed: boolean }> = {
  f: { text: "free", colour: "--memory", filled: false, crossed: false },
  o: { text: "online", colour: "--far", filled: true, crossed: false },
  t: { text: "being taken offline", colour: "--wait", filled: true, crossed: false },
  z: { text: "being zeroed", colour: "--wait", filled: false, crossed: true },
  s: { text: "stuck", colour: "--bad", filled: false, crossed: true },
  x: { text: "failed", colour: "--bad", filled: true, crossed: true },
};

/** Cells are smaller where there are many. */
function cellSize(slices: number): number {
  return slices <= 1_024 ? 14 : slices <= 8_192 ? 9 : 6;
}

function drawCell(pen: CanvasRenderingContext2D, letter: string, x: number, y: number, size: number, colours: Map<string, string>): void {
  const state = STATES[letter] ?? STATES["f"];
  if (state === undefined) return;
  const colour = colours.get(state.colour) ?? "";
  if (state.filled) {
    pen.fillStyle = colour;
    pen.fillRect(x, y, size, size);
  } else {
    pen.strokeStyle = colour;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }
  if (state.crossed) {
    pen.strokeStyle = state.filled ? (colours.get("--back") ?? "") : colour;
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + size, y + size);
    pen.moveTo(x + size, y);
    pen.lineTo(x, y + size);
    pen.stroke();
  }
}

/** Where cells lie. */
interface Grid {
  cell: number;
  columns: number;
}

function drawMap(canvas: HTMLCanvasElement, map: SliceMap, grid: Grid, host: number | null, at: number): void {
  const { cell, columns } = grid;
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [columns * cell, Math.ceil(map.states.length / columns) * cell];
  [canvas.width, canvas.height] = [width * ratio, height * ratio];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const colours = new Map(["--memory", "--far", "--wait", "--bad", "--back", "--text"].map((name) => [name, style.getPropertyValue(name).trim()]));
  const side = cell - 2;
  for (let index = 0; index < map.states.length; index += 1) {
    const [x, y] = [(index % columns) * cell + 1, Math.floor(index / columns) * cell + 1];
    const chosen = host !== null && map.hosts[index] === host;
    pen.globalAlpha = host === null || chosen ? 1 : 0.35;
    drawCell(pen, map.states[index] ?? "", x, y, side, colours);
    if (chosen || index === at) {
      pen.globalAlpha = 1;
      pen.strokeStyle = colours.get("--text") ?? "";
      pen.strokeRect(x - 0.5, y - 0.5, side + 1, side + 1);
    }
  }
}

function described(pool: Pool, map: SliceMap, index: number): string {
  const state = STATES[map.states[index] ?? ""]?.text ?? "unknown";
  const host = map.hosts[index] ?? null;
  const guest = map.guests[index] ?? null;
  const whose = host === null ? "" : `, ${pool.hosts[host]?.host ?? "an unknown host"}`;
  return `Slice ${map.emc}/${index}: ${state}${whose}${guest === null ? "" : `, guest ${guest}`}`;
}

function label(pool: Pool, map: SliceMap): string {
  const counts = Object.entries(STATES).map(([letter, { text }]) => [[...map.states].filter((found) => found === letter).length, text] as const);
  const parts = counts.filter(([number]) => number > 0).map(([number, text]) => `${number} ${text}`);
  return `Slices of EMC ${map.emc}: ${parts.join(", ")}. Arrow keys read single slices${pool.hosts.length > 0 ? ", Enter shows the host" : ""}.`;
}

/** The slices of one controller; those of a chosen host are framed. `choose` is called with a host. */
export function sliceMap(pool: Pool, map: SliceMap, host: number | null, choose: (host: number) => void): HTMLElement {
  const canvas = h("canvas", { "aria-hidden": "true" });
  const place = h("div", { class: "slices", tabindex: 0, role: "img", "aria-label": label(pool, map) }, canvas);
  const shown = h("p", { class: "dim reading", role: "status" }, "Point to a slice, or use the arrow keys.");
  const cell = cellSize(map.states.length);
  let grid: Grid = { cell, columns: 1 };
  let at = -1;
  const redraw = () => drawMap(canvas, map, grid, host, at);
  const read = (index: number) => {
    if (index < 0 || index >= map.states.length || index === at) return;
    at = index;
    redraw();
    shown.textContent = described(pool, map, at);
  };
  const open = () => {
    const found = map.hosts[at] ?? null;
    if (found !== null) choose(found);
  };
  const pointed = (event: MouseEvent) => {
    const column = Math.floor(event.offsetX / cell);
    if (column < grid.columns) read(Math.floor(event.offsetY / cell) * grid.columns + column);
  };
  canvas.addEventListener("mousemove", pointed);
  canvas.addEventListener("click", (event) => {
    pointed(event);
    open();
  });
  place.addEventListener("keydown", (event) => {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid.columns, ArrowDown: grid.columns };
    const step = steps[event.key];
    if (event.key === "Enter") return open();
    if (step === undefined) return;
    read(at < 0 ? 0 : at + step);
    event.preventDefault();
  });
  const observer = new ResizeObserver(() => {
    const columns = Math.max(1, Math.min(map.states.length, Math.floor(place.clientWidth / cell)));
    if (place.clientWidth > 0 && (columns !== grid.columns || canvas.width === 0 || canvas.style.width === "")) {
      grid = { cell, columns };
      redraw();
    }
    if (!place.isConnected) observer.disconnect();
  });
  observer.observe(place);
  const title = map.works ? `EMC ${map.emc}` : `EMC ${map.emc}, failed`;
  return h("section", {}, h("h3", {}, title), place, shown);
}

/** What the cells are. */
export function legend(): HTMLElement {
  const items = Object.values(STATES).map((state) => {
    const mark = h("span", { class: `slice ${state.filled ? "filled" : ""} ${state.crossed ? "crossed" : ""} ${state.colour.slice(2)}`, "aria-hidden": "true" });
    return h("li", {}, mark, state.text);
  });
  return h("ul", { class: "legend" }, ...items);
}
