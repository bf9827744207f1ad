// Requests to the console's server, and the shape of its answers.

/** Whether a source was read. `why` says what to do. */
export interface State {
  state: "absent" | "loading" | "failed" | "ready";
  why?: string;
}

export interface Status {
  version: string;
  read_unix_ms: number | null;
  machine: State;
  fleet: State;
  what_if: State;
}

export interface MachineJob {
  job: string;
  class: string;
  policy: string;
  memory_bytes: number;
  far_bytes: number;
  saved_mean_bytes: number;
  periods: number;
  periods_over: number;
  periods_over_allowed: number;
  breaks_objective: boolean;
}

export interface Machine {
  kernel: string;
  begins_unix_ms: number;
  ends_unix_ms: number;
  dram_bytes: number | null;
  saved_mean_bytes: number | null;
  saved_worth: number | null;
  verdict: string[];
  broken: boolean;
  saved: { unix_ms: number; bytes: number }[];
  jobs: MachineJob[];
  jobs_left_out: number;
  events: { unix_ms: number; job: string | null; what: string }[];
  events_left_out: number;
}

export interface MachineJobPoints {
  job: string;
  points: { unix_ms: number; memory_bytes: number; far_bytes: number; of_objective_ratio: number | null }[];
}

export interface Part {
  name: string;
  jobs: number;
  machines: number;
  memory_bytes: number;
  cold_bytes: number;
  far_bytes: number;
  saved_bytes: number;
  saved_worth: number | null;
  coverage_ratio: number | null;
  entries_on: number;
  rate_ratio_per_min: number | null;
  holds: boolean | null;
}

export interface Fleet {
  begins_unix_seconds: number;
  ends_unix_seconds: number;
  entries: number;
  objective_ratio_per_min: number;
  objective_percentile_ratio: number;
  price_per_gib: number | null;
  fleet: Part;
  clusters: Part[];
  clusters_left_out: number;
  jobs_listed: number;
}

export interface Series {
  step_seconds: number;
  unix_seconds: number[];
  memory_bytes: number[];
  cold_bytes: number[];
  far_bytes: number[];
  saved_bytes: number[];
  coverage_ratio: (number | null)[];
}

export interface PartDetail {
  series: Series;
  rates: { share_ratio: number; rate_ratio_per_min: number | null }[];
}

/** Columns of equal length. */
export interface Jobs {
  job: string[];
  cluster: (number | null)[];
  machine: string[];
  class: string[];
  seconds: number[];
  memory_bytes: number[];
  far_bytes: number[];
  saved_bytes: number[];
  coverage_ratio: (number | null)[];
  rate_ratio_per_min: (number | null)[];
  left_out: number;
}

export interface JobDetail {
  cluster: string;
  machine: string;
  job: string;
  class: string;
  series: Series;
}

export interface Pair {
  percentile_ratio: number;
  warmup_seconds: number;
  stored_bytes: number;
  saved_bytes: number;
  saved_ratio: number;
  coverage_ratio: number;
  rate_ratio_per_min: number | null;
  tail_ratio_per_min: number | null;
  holds: boolean;
  on_ratio: number;
  promotions_pages_per_second: number;
  unresolved_ratio: number;
  coverage_interval_ratio?: [number, number];
  saved_worth?: number;
}

export interface WhatIf {
  jobs: number;
  entries: number;
  used_bytes: number;
  percentiles_ratio: number[];
  warmups_seconds: number[];
  objectives_ratio_per_min: number[];
  configured: [number, number, number];
  objective_percentile_ratio: number;
  pairs: Pair[];
  best: (number | null)[];
}

/** The server has no answer: the source is absent, is being read, or cannot be read. */
export class NotReady extends Error {
  constructor(readonly state: State) {
    super(state.why ?? state.state);
  }
}

/** The server wants a token, or the one that was given is wrong. */
export class TokenNeeded extends Error {}

const TOKEN = "thermocline-token";

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
}

export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Answers that do not change until the sources are read again. */
const answers = new Map<string, unknown>();

export function forget(): void {
  answers.clear();
}

export async function get<T>(path: string): Promise<T> {
  const known = answers.get(path);
  if (known !== undefined) return known as T;
  const token = sessionStorage.getItem(TOKEN);
  let response: Response;
  try {
    response = await fetch(`/api/${path}`, token === null ? {} : { headers: { authorization: `Bearer ${token}` } });
  } catch {
    throw new Error(`The console at ${location.host} does not answer. Start \`thermocline console\` again, then reload this page.`);
  }
  if (response.status === 401) throw new TokenNeeded("a token is needed");
  const body: unknown = await response.json().catch(() => ({}));
  if (response.status === 503) throw new NotReady(body as State);
  if (!response.ok) {
    throw new Error(`/api/${path}: ${(body as { error?: string }).error ?? `status ${response.status}`}`);
  }
  if (path !== "status") answers.set(path, body);
  return body as T;
}
