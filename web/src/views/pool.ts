// A pool: its hosts with their leases, guests with their zNUMA nodes, the map of all slices, and faults.

import { get, type Pool } from "../api";
import { cards, h, list, panel, readAt, type Card, type Child } from "../dom";
import { count, duration, percent, size } from "../format";
import { legend, sliceMap } from "../slices";
import { SortedTable, type Kept } from "../table";

const keptHosts: Kept = {};
const keptGuests: Kept = {};

function figures(pool: Pool): Card[] {
  const { slices } = pool;
  const bytes = (number: number) => size(number * pool.slice_bytes);
  const all = Object.values(slices).reduce((sum, number) => sum + number, 0);
  const leaving = slices.offlining + slices.stuck + slices.scrubbing;
  const leased = pool.hosts.filter((host) => host.lease_left_seconds !== null).length;
  const guests = pool.guests.length + pool.guests_left_out;
  return [
    ["Memory", bytes(all), `${count(all)} slices of ${size(pool.slice_bytes)}`],
    ["Used by guests", bytes(slices.online), percent(all > 0 ? slices.online / all : null)],
    ["Free", bytes(slices.free), `a VM can get ${bytes(pool.grantable)}; ${count(pool.buffer_slices)} slices are kept free`],
    ["In release", bytes(leaving), `${count(slices.stuck)} slices are stuck`, slices.stuck > 0 ? "bad" : ""],
    ["Failed", bytes(slices.failed), `${count(pool.maps.filter((map) => !map.works).length)} of ${count(pool.maps.length)} EMCs`, slices.failed > 0 ? "bad" : ""],
    ["Hosts with a lease", `${count(leased)} of ${count(pool.hosts.length)}`, `${count(guests)} guests with pool memory`],
  ];
}

function faults(pool: Pool): HTMLElement {
  if (pool.faults.length === 0) return h("div", { class: "verdict" }, h("p", {}, "No fault: the ledger can be written, all EMCs work, no slice is stuck, and no host holds slices without a lease."));
  const shown = pool.faults.slice(0, 20).map((fault) => h("li", {}, h("strong", {}, fault.what), h("small", {}, fault.remedy)));
  const more = pool.faults.length - shown.length;
  return h("div", { class: "verdict broken" },
    h("p", {}, `${count(pool.faults.length)} ${pool.faults.length === 1 ? "fault" : "faults"}`),
    h("ul", { class: "faults" }, ...shown),
    more > 0 ? h("p", { class: "dim" }, `${count(more)} more; thermocline pool status lists all.`) : null);
}

const address = (pool: Pool, host: number) => `#pool/host/${encodeURIComponent(pool.hosts[host]?.host ?? "")}`;

function hosts(pool: Pool, chosen: number | null): HTMLElement {
  const at = (row: number) => pool.hosts[row] as Pool["hosts"][number];
  const lease = (row: number) => at(row).lease_left_seconds;
  return new SortedTable({
    label: "Hosts of the pool",
    rows: pool.hosts.length,
    sortedBy: 3,
    selected: chosen,
    kept: keptHosts,
    found: (row) => `${at(row).host} ${at(row).instance}`,
    choose: (row) => (location.hash = address(pool, row)),
    columns: [
      { title: "host", kind: "name", text: (row) => at(row).host, key: (row) => at(row).host },
      { title: "lease", kind: "number", text: (row) => { const left = lease(row); return left === null ? "none" : `${left.toFixed(1)} s`; }, key: lease, mark: (row) => (lease(row) === null && at(row).slices > 0 ? "bad" : "") },
      { title: "guests", kind: "number", text: (row) => count(at(row).vms), key: (row) => at(row).vms },
      { title: "memory", kind: "number", text: (row) => size(at(row).slices * pool.slice_bytes), key: (row) => at(row).slices },
      { title: "slices", kind: "number", text: (row) => count(at(row).slices), key: (row) => at(row).slices, less: true },
      { title: "epoch", kind: "number", text: (row) => count(at(row).epoch), key: (row) => at(row).epoch, less: true },
      { title: "instance", kind: "text", text: (row) => at(row).instance, key: (row) => at(row).instance, less: true },
    ],
  }).element;
}

const hostOf = (pool: Pool, guest: Pool["guests"][number]) => (guest.host === null ? "-" : (pool.hosts[guest.host]?.host ?? "-"));

function guests(pool: Pool): HTMLElement {
  const at = (row: number) => pool.guests[row] as Pool["guests"][number];
  return new SortedTable({
    label: "Guests with pool memory",
    rows: pool.guests.length,
    sortedBy: 2,
    kept: keptGuests,
    found: (row) => `${at(row).vm} ${hostOf(pool, at(row))} EMC ${at(row).emc}`,
    columns: [
      { title: "guest", kind: "name", text: (row) => at(row).vm, key: (row) => at(row).vm },
      { title: "host", kind: "text", text: (row) => hostOf(pool, at(row)), key: (row) => hostOf(pool, at(row)) },
      { title: "zNUMA", kind: "number", text: (row) => size(at(row).slices * pool.slice_bytes), key: (row) => at(row).slices },
      { title: "slices", kind: "number", text: (row) => count(at(row).slices), key: (row) => at(row).slices, less: true },
      { title: "EMC", kind: "number", text: (row) => String(at(row).emc), key: (row) => at(row).emc, less: true },
      { title: "failed", kind: "number", text: (row) => count(at(row).failed), key: (row) => at(row).failed, mark: (row) => (at(row).failed > 0 ? "bad" : "") },
    ],
  }).element;
}

/** One host: its lease and its guests. */
function detail(pool: Pool, chosen: number): Node[] {
  const host = pool.hosts[chosen] as Pool["hosts"][number];
  const left = host.lease_left_seconds;
  const lease = left === null ? "It has no lease." : `Its lease ends in ${duration(left)} unless it is renewed.`;
  const text = `${lease} ${count(host.vms)} guests, ${size(host.slices * pool.slice_bytes)} of pool memory in ${count(host.slices)} slices; epoch ${count(host.epoch)}${host.instance === "" ? "" : `, ${host.instance}`}.`;
  const rows = pool.guests.filter((guest) => guest.host === chosen).slice(0, 100).map((guest): Child[] => [guest.vm, size(guest.slices * pool.slice_bytes), count(guest.slices), String(guest.emc), guest.failed > 0 ? h("span", { class: "bad" }, count(guest.failed)) : "0"]);
  const table = rows.length === 0 ? h("p", { class: "dim" }, "It has no guest with pool memory.") : list(`Guests of ${host.host}`, ["guest", "zNUMA", "slices", "EMC", "failed"], rows, ["name", "number", "number", "number", "number"]);
  return [h("h2", {}, `Host ${host.host} `, h("a", { href: "#pool" }, "all hosts")), h("p", {}, text), table];
}

export async function poolView(parts: string[]): Promise<Node[]> {
  const pool = await get<Pool>("pool");
  const name = parts[0] === "host" ? decodeURIComponent(parts[1] ?? "") : null;
  const found = name === null ? -1 : pool.hosts.findIndex((host) => host.host === name);
  const chosen = found < 0 ? null : found;
  const unknown = name !== null && chosen === null ? panel("No such host", `The manager lists no host ${name}. Choose one of the list.`, true) : null;
  const one = h("section", { "aria-live": "polite" }, unknown, ...(chosen === null ? [] : detail(pool, chosen)));
  const dim = (text: string) => h("p", { class: "dim" }, text);
  const at = new Date(pool.read_unix_ms).toISOString().slice(11, 19);
  const nodes: Node[] = [faults(pool), readAt(`Read from ${pool.manager} at ${at} UTC`), cards(figures(pool)), one, h("h2", {}, "Slices"), legend(), h("div", { class: "maps" }, ...pool.maps.map((map) => sliceMap(pool, map, chosen, (host) => (location.hash = address(pool, host))))),
    h("h2", {}, "Hosts"), dim("Lease: the time that was left when the pool was read. Memory: slices that the host may access. A name shows the host's guests, and its slices in the map."), hosts(pool, chosen),
    h("h2", {}, "Guests"), dim("A guest has its slices as one NUMA node without cores (zNUMA). Failed: slices at an EMC that has failed, with which the guest is lost."), guests(pool)];
  if (pool.guests_left_out > 0) nodes.push(dim(`${count(pool.guests_left_out)} more guests with fewer slices are not listed.`));
  nodes.push(dim("The manager does not know the local memory of guests: thermocline pool vm list shows it on each host."));
  return nodes;
}
