// Tables that sort, filter and show one page at a time, so that ten thousand rows cost as much as fifty.

import { h } from "./dom";
import { count } from "./format";

export interface Column {
  title: string;
  /** What a cell shows. */
  text: (row: number) => string;
  /** What rows are sorted by. Unknown values are last. */
  key: (row: number) => number | string | null;
  kind?: "name" | "text" | "number";
  /** The cell's class. */
  mark?: (row: number) => string;
  /** Left out where there is little room. */
  less?: boolean;
}

export interface Table {
  /** Names the table. */
  label: string;
  rows: number;
  columns: Column[];
  /** The column that rows are sorted by at first, descending. */
  sortedBy: number;
  /** Called with the row whose name was chosen. */
  choose?: (row: number) => void;
  /** What the search box finds. */
  found?: (row: number) => string;
  selected?: number | null;
  /** Order, page and filter, for a view that is drawn again. */
  kept?: Kept;
}

export interface Kept {
  column?: number;
  direction?: number;
  page?: number;
  words?: string;
}

const PAGE = 50;

function compare(a: number | string | null, b: number | string | null, direction: number): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  return (a < b ? -1 : a > b ? 1 : 0) * direction;
}

export class SortedTable {
  readonly element: HTMLElement;
  private column: number;
  private direction = -1;
  private page = 0;
  private words = "";
  private order: number[] = [];
  private readonly place: HTMLElement;
  private readonly pages: HTMLElement;
  /** What the search box searches, in lower case; made when it is first used. */
  private texts: string[] | null = null;
  private selected: number | null;

  constructor(private readonly table: Table) {
    this.selected = table.selected ?? null;
    const kept = table.kept ?? {};
    this.column = kept.column ?? table.sortedBy;
    this.direction = kept.direction ?? -1;
    this.page = kept.page ?? 0;
    this.words = kept.words ?? "";
    this.place = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": table.label });
    this.pages = h("div", { class: "controls" });
    const search = h("input", { type: "search", input: (event) => this.search((event.target as HTMLInputElement).value) });
    search.value = this.words;
    const controls = table.found ? h("div", { class: "controls" }, h("label", {}, "Filter", search)) : null;
    this.element = h("div", {}, controls, this.place, this.pages);
    this.sort();
  }

  select(row: number | null): void {
    this.selected = row;
    this.show();
  }

  private search(words: string): void {
    this.words = words.trim().toLowerCase();
    this.page = 0;
    this.sort();
  }

  private sort(): void {
    const { rows, found, columns } = this.table;
    let all = Array.from({ length: rows }, (_, row) => row);
    if (this.words !== "" && found) {
      this.texts ??= all.map((row) => found(row).toLowerCase());
      const texts = this.texts;
      const words = this.words.split(/\s+/);
      all = all.filter((row) => words.every((word) => texts[row]?.includes(word)));
    }
    const key = columns[this.column]?.key;
    if (key) {
      const keys = Array.from({ length: rows }, (_, row) => key(row));
      all.sort((a, b) => compare(keys[a] ?? null, keys[b] ?? null, this.direction) || a - b);
    }
    this.order = all;
    this.show();
  }

  private sortBy(column: number): void {
    this.direction = column === this.column ? -this.direction : this.table.columns[column]?.kind === "number" ? -1 : 1;
    this.column = column;
    this.page = 0;
    this.sort();
    // The header was drawn again.
    this.place.querySelectorAll<HTMLElement>("th button")[column]?.focus();
  }

  private head(): HTMLElement {
    const cells = this.table.columns.map((column, index) => {
      const sorted = index === this.column ? (this.direction < 0 ? "descending" : "ascending") : "none";
      const classes = [column.kind ?? "number", column.less ? "less" : ""].join(" ").trim();
      return h("th", { scope: "col", "aria-sort": sorted, class: classes }, h("button", { type: "button", click: () => this.sortBy(index) }, column.title));
    });
    return h("thead", {}, h("tr", {}, ...cells));
  }

  private row(row: number): HTMLElement {
    const choose = this.table.choose;
    const cells = this.table.columns.map((column) => {
      const classes = [column.kind ?? "number", column.less ? "less" : "", column.mark?.(row) ?? ""].join(" ").trim();
      const text = column.text(row);
      const chosen = column.kind === "name" && choose;
      return h("td", { class: classes }, chosen ? h("button", { type: "button", class: "link", click: () => choose(row) }, text) : text);
    });
    return h("tr", row === this.selected ? { class: "selected" } : {}, ...cells);
  }

  private show(): void {
    // A table that was drawn again may have fewer rows.
    this.page = Math.max(0, Math.min(this.page, Math.ceil(this.order.length / PAGE) - 1));
    const { column, direction, page, words } = this;
    if (this.table.kept) Object.assign(this.table.kept, { column, direction, page, words });
    const first = this.page * PAGE;
    const shown = this.order.slice(first, first + PAGE);
    const body = h("tbody", {}, ...shown.map((row) => this.row(row)));
    this.place.replaceChildren(h("table", { class: "list" }, this.head(), body));
    const last = Math.ceil(this.order.length / PAGE) - 1;
    const turn = (by: number, text: string) => {
      const to = this.page + by;
      const click = () => {
        this.page = to;
        this.show();
      };
      return h("button", { type: "button", class: "plain", disabled: to < 0 || to > last, click }, text);
    };
    const range = this.order.length === 0 ? "No row" : `${count(first + 1)} to ${count(first + shown.length)} of ${count(this.order.length)}`;
    const several = last > 0 ? [turn(-1, "Previous"), turn(1, "Next")] : [];
    this.pages.replaceChildren(h("span", { class: "dim", role: "status" }, range), ...several);
  }
}
