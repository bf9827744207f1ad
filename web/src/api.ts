// Requests to the console's server, and the shape of its answers.

/** Whether a source was read. `why` says what to do. */
export interface State {
  state: "absent" | "loading" | "failed" | "ready";
  why?: string;
  /** Of a source that is read again and again. */
  read_unix_ms?: number | null;
}

export interface Status {
  version: string;
  read_unix_ms: number | null;
  machine: State;
  fleet: State;
  what_if: State;
  rollout: State;
  pool: State;
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

export interface Measurement {
  control: number;
  treated: number;
  harm_lower: number;
  harm_upper: number;
  margin: number;
  control_machines: number;
  treated_machines: number;
}

export interface Judgement {
  guard: string;
  verdict: "pass" | "hold" | "breach";
  why: string;
  measured: Measurement | null;
}

export interface Evaluation {
  treated_machines: number;
  control_machines: number;
  covered_ms: number;
  following: number;
  judgements: Judgement[];
}

export interface Stage {
  name: string;
  share_ppm: number;
  clusters: string[];
  least_ms: number;
  proof: boolean;
  is: string;
  evaluated_unix_ms: number | null;
  evaluation: Evaluation | null;
  decision: string | null;
}

export interface Guard {
  name: string;
  watches: string;
  meaning: string;
  unit: "ratio" | "ratio_per_min" | "per_job_day" | "number";
  margin: { absolute: number } | { relative: number };
  limit: number | null;
  proof: boolean;
}

export interface Step {
  number: number;
  unix_ms: number;
  until_unix_ms: number;
  count: number;
  stage: string;
  what: string;
  why: string;
}

export interface Rollout {
  read_unix_ms: number;
  rollout: string;
  bundle: number;
  bundle_id: string | null;
  knobs: [string, string][] | null;
  previous: number | null;
  phase: string;
  is: "running" | "stopped" | "rolled_back" | "finished";
  place: string;
  started_unix_ms: number;
  since_unix_ms: number;
  published_agrees: boolean | null;
  published_problem: string | null;
  control_ppm: number;
  machines_min: number;
  following_min: number;
  false_rollbacks: number;
  stage: number;
  stages: Stage[];
  guards: Guard[];
  steps: Step[];
  steps_left_out: number;
}

export interface SliceCounts {
  free: number;
  online: number;
  offlining: number;
  stuck: number;
  scrubbing: number;
  failed: number;
}

export interface PoolHost {
  host: string;
  epoch: number;
  instance: string;
  lease_left_seconds: number | null;
  vms: number;
  slices: number;
}

/** The slices of one controller: a letter, a host and a guest each. */
export interface SliceMap {
  emc: number;
  works: boolean;
  states: string;
  hosts: (number | null)[];
  guests: (string | null)[];
}

export interface Pool {
  read_unix_ms: number;
  manager: string;
  slice_bytes: number;
  slices: SliceCounts;
  grantable: number;
  buffer_slices: number;
  hosts: PoolHost[];
  guests: { vm: string; host: number | null; emc: number; slices: number; failed: number }[];
  guests_left_out: number;
  maps: SliceMap[];
  faults: { what: string; remedy: string }[];
}

/** The server has no answer: the source is absent, is being read, or cannot be read. */
export class NotReady extends Error {
  constructor(readonly state: State) {
    super(state.why ?? state.state);
  }
}

/** The server wants a token, or the one that was given is wrong. */
export class TokenNeeded extends Error {}

/** The answers that the page itself holds, by path: those of a report, which has no server. */
const held: Record<string, unknown> | null = JSON.parse(document.getElementById("answers")?.textContent ?? "null") as Record<string, unknown> | null;

export const isReport = held !== null;

/** The answer of a report. */
function answerOf(report: Record<string, unknown>, path: string): unknown {
  const answer = report[path];
  if (answer !== undefined) return answer;
  const source = (path.split("/")[0] ?? "").replace("-", "_") as "machine" | "fleet" | "what_if" | "rollout" | "pool";
  const state = (report["status"] as Status)[source];
  if (state !== undefined && state.state !== "ready") throw new NotReady(state);
  throw new Error("This report has the details of the jobs with most memory and savings only. `thermocline console` has those of all.");
}

const TOKEN = "thermocline-token";

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
}

export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Answers that may differ each time. */
const LIVE = ["status", "rollout", "pool"];

/** Answers that do not change until the sources are read again. */
const answers = new Map<string, unknown>();

export function forget(): void {
  answers.clear();
}

export async function get<T>(path: string): Promise<T> {
  if (held !== null) return answerOf(held, path) as T;
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
  if (!LIVE.includes(path)) answers.set(path, body);
  return body as T;
}
