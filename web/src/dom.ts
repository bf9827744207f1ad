// Elements from data. Text is only ever set as text: names of jobs are chosen by users.

export type Child = Node | string | null | undefined;
type Attributes = Record<string, string | number | boolean | ((event: Event) => void)>;

export function h<K extends keyof HTMLElementTagNameMap>(name: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(key, value);
    } else if (typeof value === "boolean") {
      element.toggleAttribute(key, value);
    } else {
      element.setAttribute(key, String(value));
    }
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined));
  return element;
}

/** A figure with its label: `[label, value, what it is]`. */
export type Card = [string, string, string?, ("good" | "bad" | "")?];

export function cards(all: Card[]): HTMLElement {
  const card = ([label, value, note, kind]: Card) =>
    h("div", {}, h("dt", {}, label), h("dd", kind ? { class: kind } : {}, value, note === undefined ? null : h("small", {}, note)));
  return h("dl", { class: "cards" }, ...all.map(card));
}

/** A table that is shown as it is, in a region that the keyboard can scroll. `stacked`: a phone has a line for each cell. */
export function list(label: string, heads: string[], rows: Child[][], kinds: string[], layout: "stacked" | "" = ""): HTMLElement {
  const kind = (column: number) => kinds[column] ?? "text";
  // Roles stay where a style makes blocks of cells.
  const cells = (row: Child[]) => row.map((cell, column) => h("td", { role: "cell", class: kind(column), "data-head": heads[column] ?? "" }, cell));
  const head = h("tr", { role: "row" }, ...heads.map((title, column) => h("th", { role: "columnheader", scope: "col", class: kind(column) }, title)));
  const body = rows.map((row) => h("tr", { role: "row" }, ...cells(row)));
  const table = h("table", { role: "table", class: `list ${layout}`.trim() }, h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, ...body));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}

/** An empty state or an error: what happened, and what to do. */
export function panel(title: string, text: string, failed = false): HTMLElement {
  const attributes: Attributes = failed ? { class: "panel failed", role: "alert" } : { class: "panel" };
  return h("section", attributes, h("h2", {}, title), h("p", {}, text));
}

/** When a live source was read, and a button that shows the newest figures: while the focus is in a view, it does not change by itself. */
export function readAt(text: string): HTMLElement {
  const click = () => window.dispatchEvent(new Event("show-again"));
  return h("div", { class: "controls" }, h("span", { class: "dim" }, text), h("button", { type: "button", class: "plain", id: "again", click }, "Show the newest"));
}
