"""One pair of K and S over a whole fleet, in three versions.

Each returns sums over all entries that are replayed with far memory: cold pages at the threshold in effect times the
window in milliseconds, promotions at that threshold, and the number of entries. `docs/model.md` has the rules: SDFM
section 4.3, with a threshold that applies to the entry after the one in which it was decided.
"""

from dataclasses import dataclass

import duckdb
import numba
import numpy as np

from .jobs import Jobs, Numbers

PPM = 1_000_000
MS_PER_MINUTE = 60_000

Sums = tuple[int, int, int]


@dataclass(frozen=True)
class Pair:
    """Parameters: P and K in parts per million, S in milliseconds."""

    rate_ppm: int
    percentile_ppm: int
    warmup_ms: int


def by_numpy(jobs: Jobs, pair: Pair) -> Sums:
    """Processes one entry of all jobs at a time."""
    lengths = np.diff(jobs.starts)
    # Longest jobs first, so that the jobs that still have entries are a prefix.
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = jobs.starts[:-1][order], lengths[order]
    buckets = jobs.cold.shape[1]
    bests = np.zeros((len(starts), buckets), dtype=np.int64)
    chosen = np.full(len(starts), buckets - 1)
    warm = np.zeros(len(starts), dtype=bool)
    stored = promoted = entries = 0
    for step in range(int(lengths[0])):
        live = int(np.searchsorted(-lengths, -step, side="left"))
        rows = starts[:live] + step
        cold, window = jobs.cold[rows].astype(np.int64), jobs.window_ms[rows]
        cold_from = cold[:, :0:-1].cumsum(axis=1)[:, ::-1]
        promoted_from = jobs.promotions[rows].astype(np.int64)[:, :0:-1].cumsum(axis=1)[:, ::-1]
        counts = np.flatnonzero(warm[:live] & (window > 0) & (chosen[:live] < buckets - 1))
        stored += int((cold_from[counts, chosen[counts]] * window[counts]).sum())
        promoted += int(promoted_from[counts, chosen[counts]].sum())
        entries += len(counts)
        allowed = pair.rate_ppm * cold[:, 0] * window // (PPM * MS_PER_MINUTE)
        best = (promoted_from > allowed[:, None]).sum(axis=1)
        bests[np.arange(live), best] += window > 0
        cumulated = bests[:live].cumsum(axis=1)
        rank = np.maximum(-(-cumulated[:, -1] * pair.percentile_ppm // PPM), 1)
        percentile = (cumulated < rank[:, None]).sum(axis=1)
        chosen[:live] = np.where(window > 0, np.maximum(percentile, best), buckets - 1)
        warm[:live] = jobs.age_ms[rows] >= pair.warmup_ms
    return stored, promoted, entries


@numba.njit(cache=False)  # type: ignore[misc]
def _loop(
    starts: Numbers,
    age_ms: Numbers,
    window_ms: Numbers,
    cold: Numbers,
    promotions: Numbers,
    rate_ppm: int,
    percentile_ppm: int,
    warmup_ms: int,
) -> Sums:
    buckets = cold.shape[1]
    stored, promoted, entries = 0, 0, 0
    bests = np.zeros(buckets, dtype=np.int64)
    for job in range(len(starts) - 1):
        bests[:] = 0
        total, chosen, warm = 0, buckets - 1, False
        for row in range(starts[job], starts[job + 1]):
            window = window_ms[row]
            if warm and window > 0 and chosen < buckets - 1:
                pages = 0
                for bucket in range(chosen + 1, buckets):
                    pages += np.int64(cold[row, bucket])
                    promoted += np.int64(promotions[row, bucket])
                stored += pages * window
                entries += 1
            chosen = buckets - 1
            if window > 0:
                allowed = rate_ppm * np.int64(cold[row, 0]) * window // (PPM * MS_PER_MINUTE)
                best, above = 0, 0
                for bucket in range(buckets - 1, 0, -1):
                    above += np.int64(promotions[row, bucket])
                    if above > allowed:
                        best = bucket
                        break
                bests[best] += 1
                total += 1
                rank = max((total * percentile_ppm + PPM - 1) // PPM, 1)
                cumulated, percentile = 0, 0
                for bucket in range(buckets):
                    cumulated += bests[bucket]
                    if cumulated >= rank:
                        percentile = bucket
                        break
                chosen = max(percentile, best)
            warm = age_ms[row] >= warmup_ms
    return stored, promoted, entries


def by_numba(jobs: Jobs, pair: Pair) -> Sums:
    """Processes entries in compiled loops."""
    arrays = (jobs.starts, jobs.age_ms, jobs.window_ms, jobs.cold, jobs.promotions)
    stored, promoted, entries = _loop(*arrays, pair.rate_ppm, pair.percentile_ppm, pair.warmup_ms)
    return int(stored), int(promoted), int(entries)


def in_duckdb(jobs: Jobs) -> duckdb.DuckDBPyConnection:
    """Returns an in-memory database with one thread and the trace as table `entries`, with lists for histograms."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("raw", jobs.table)
    connection.execute(
        """
        CREATE TABLE entries AS SELECT job_number, job_age_ms, window_ms,
          [*COLUMNS('^cold_[0-9]+_pages$')] AS cold,
          [*COLUMNS('^promotions_[0-9]+_pages$')] AS promotions
        FROM raw
        """
    )
    return connection


def by_sql(connection: duckdb.DuckDBPyConnection, pair: Pair) -> Sums:
    """Uses a window over all earlier bests for each entry."""
    parameters = {
        "rate": pair.rate_ppm,
        "divisor": PPM * MS_PER_MINUTE,
        "percentile": pair.percentile_ppm / PPM,
        "warmup_ms": pair.warmup_ms,
    }
    row = connection.execute(_SQL, parameters).fetchone() or (0, 0, 0)
    return int(row[0] or 0), int(row[1] or 0), int(row[2])


_SQL = """
WITH best AS (
  SELECT *, list_sum([
      (list_sum(promotions[b + 1:]) > $rate * cold[1] * window_ms // $divisor)::INT FOR b IN range(1, len(cold))
    ])::INT AS best
  FROM entries WHERE window_ms > 0
), pool AS (
  SELECT *, greatest(best, quantile_disc(best, $percentile)
      OVER (PARTITION BY job_number ORDER BY job_age_ms ROWS UNBOUNDED PRECEDING)) AS threshold
  FROM best
), in_effect AS (
  SELECT *, lag(threshold) OVER each_job AS held, lag(job_age_ms) OVER each_job AS held_since
  FROM pool WINDOW each_job AS (PARTITION BY job_number ORDER BY job_age_ms)
)
SELECT sum(list_sum(cold[held + 2:]) * window_ms)::HUGEINT, sum(list_sum(promotions[held + 2:]))::HUGEINT, count(*)
FROM in_effect WHERE held_since >= $warmup_ms AND held < len(cold) - 1
"""
