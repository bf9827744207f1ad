// Numbers and times as text. Sizes and units are those of the command line.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

export function size(bytes: number): string {
  let value = Math.abs(bytes);
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${bytes < 0 ? "-" : ""}${value.toFixed(digits)} ${SIZES[unit]}`;
}

/** A share in percent; "-" if it is not known. */
export function percent(ratio: number | null, digits = 1): string {
  return ratio === null ? "-" : `${(ratio * 100).toFixed(digits)} %`;
}

/** Promotions per minute as a share of the working set. */
export function rate(ratio: number | null): string {
  if (ratio === null) return "-";
  const value = ratio * 100;
  return `${value === 0 ? "0" : value >= 10 ? value.toFixed(0) : Number(value.toPrecision(2)).toString()} %/min`;
}

export function money(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) >= 100 ? 0 : 2 });
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

export function duration(seconds: number): string {
  const units: [string, number][] = [["days", 86_400], ["h", 3_600], ["min", 60]];
  for (const [name, length] of units) {
    if (seconds >= 2 * length || (seconds >= length && name !== "days")) return `${Number((seconds / length).toFixed(1))} ${name}`;
  }
  return `${Math.round(seconds)} s`;
}

/** A time in UTC. */
export function time(unixSeconds: number): string {
  return `${new Date(unixSeconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
