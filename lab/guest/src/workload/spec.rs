//! The specification of a workload: regions of memory, their content and the pattern of their accesses.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::content::Content;

/// Limits of the number of regions and of a region's bytes.
const REGIONS_MAX: usize = 256;
const BYTES_MAX: u64 = 1 << 40;
/// Limit of periods and phases: a day.
const PERIOD_MS_MAX: u64 = 86_400_000;
/// Limits of a request's computation and pages.
const ROUNDS_MAX: u64 = 1 << 32;
const PAGES_MAX: u32 = 1 << 16;
/// Bytes of a huge page.
pub(super) const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A whole workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Spec {
    /// Seed for contents and random accesses.
    pub(super) seed: u64,
    pub(super) regions: Vec<RegionSpec>,
    /// Server whose requests read the regions with pattern `requests`; required if there are any.
    pub(super) server: Option<ServerSpec>,
}

/// Requests, served one after the other: each reads pages of every region with pattern `requests`, and computes.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerSpec {
    /// Rounds of computation per request, a few nanoseconds each, some tens under emulation.
    pub(super) rounds: u64,
    /// Requests per second; `None`: as many as can be served.
    pub(super) rate: Option<f64>,
}

/// One region, which has a mapping of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionSpec {
    /// Unique; letters, digits, `-` and `_`.
    pub(super) name: String,
    /// A multiple of the page size, or of 2 MiB for huge pages.
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) pattern: Pattern,
    /// Whether accesses write.
    #[serde(default)]
    pub(super) writes: bool,
    /// Whether the region is locked in DRAM by `mlock`.
    #[serde(default)]
    pub(super) locked: bool,
    /// File of a `file` region; default: beside the layout file.
    pub(super) path: Option<PathBuf>,
}

/// Type of a region's memory.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Private memory in small pages, with compressible text.
    Anon,
    /// A memory file, accessed by a child process only.
    Shared,
    /// A memory file, mapped and accessed only by the workload, like a virtual machine's memory by its process.
    Memfd,
    /// A file on disk, mapped shared.
    File,
    /// Private memory in huge pages, as far as the kernel allocates them.
    Huge,
    /// Private memory in small pages, with random bytes.
    Incompressible,
    /// Private memory in small pages, with a model's quantised weights.
    Weights,
}

impl Kind {
    /// Returns the content of regions of this kind.
    pub(super) fn content(self) -> Content {
        match self {
            Self::Incompressible => Content::Random,
            Self::Weights => Content::Weights,
            Self::Anon | Self::Shared | Self::Memfd | Self::File | Self::Huge => Content::Text,
        }
    }
}

/// Pattern of the accesses to a region's pages.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pattern {
    /// All pages, once per period, in address order.
    PeriodMs(u64),
    /// No accesses after the filling. The value is always `true`.
    Never(bool),
    /// Single pages with popularity by Zipf's law.
    Zipf(Zipf),
    /// Single pages at random times, with one rate per 2 MiB block.
    Poisson(Poisson),
    /// Single pages, read by each request that the workload serves.
    Requests(Requests),
    /// Several patterns in turn, repeated.
    Phases(Vec<Phase>),
}

/// Accesses in which the page of rank r has a share proportional to r^-exponent; ranks are distributed over the region.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Zipf {
    pub(super) exponent: f64,
    pub(super) touches_per_s: f64,
}

/// Rates of blocks, log-uniformly distributed from `least` to `most` accesses per second over the accessed blocks, in
/// random order. Accesses of a block are distributed over `parts` of its pages.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Poisson {
    pub(super) least: f64,
    pub(super) most: f64,
    /// Share of the blocks that are never accessed.
    #[serde(default)]
    pub(super) idle: f64,
    /// Pages of each block that are accessed; all of them by default.
    #[serde(default = "all_parts")]
    pub(super) parts: u32,
    /// The page of rank r among them has a share proportional to r^-exponent.
    #[serde(default)]
    pub(super) exponent: f64,
    /// Seed for the assignment of rates: phases that differ only in it have different hot blocks.
    #[serde(default)]
    pub(super) draw: u64,
}

/// Small pages per block.
pub(super) const BLOCK_PAGES: u32 = 512;

fn all_parts() -> u32 {
    BLOCK_PAGES
}

/// Pages read by each request, chosen as in [`Zipf`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Requests {
    pub(super) exponent: f64,
    pub(super) pages: u32,
}

/// A pattern for a limited time: `{"for_s":60,"period_ms":100}`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "Map<String, Value>")]
pub(super) struct Phase {
    pub(super) for_s: f64,
    #[serde(flatten)]
    pub(super) pattern: Pattern,
}

impl TryFrom<Map<String, Value>> for Phase {
    type Error = String;

    fn try_from(mut fields: Map<String, Value>) -> Result<Self, String> {
        let for_s = fields.remove("for_s").as_ref().and_then(Value::as_f64).ok_or("a phase needs \"for_s\", a number of seconds")?;
        // The remaining fields must be exactly one pattern.
        let pattern = serde_json::from_value(Value::Object(fields)).map_err(|error| format!("a phase's pattern: {error}"))?;
        Ok(Self { for_s, pattern })
    }
}

impl Spec {
    /// Reads and checks a specification.
    ///
    /// # Errors
    /// The file cannot be read, or a value is invalid; the error names the region and the value.
    pub(super) fn read(path: &Path, page_bytes: u64) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text, page_bytes).with_context(|| format!("{} is not a workload", path.display()))
    }

    fn parse(text: &[u8], page_bytes: u64) -> Result<Self> {
        let spec: Self = serde_json::from_slice(text)?;
        let count = spec.regions.len();
        ensure!((1..=REGIONS_MAX).contains(&count), "it has {count} regions; 1 to {REGIONS_MAX} are allowed");
        let mut names = HashSet::new();
        for region in &spec.regions {
            region.check(page_bytes).with_context(|| format!("region {:?}", region.name))?;
            ensure!(names.insert(&region.name), "two regions are named {:?}", region.name);
        }
        let requested = spec.regions.iter().any(|region| matches!(region.pattern, Pattern::Requests(_)));
        ensure!(requested == spec.server.is_some(), "a \"server\" and regions with the pattern \"requests\" require each other");
        if let Some(ServerSpec { rounds, rate }) = spec.server {
            ensure!(rounds <= ROUNDS_MAX, "\"rounds\" is {rounds}; up to {ROUNDS_MAX} are allowed");
            ensure!(rate.is_none_or(|rate| (0.001..=1e6).contains(&rate)), "\"rate\" is {rate:?}; 0.001 to 1000000 are allowed");
        }
        Ok(spec)
    }
}

impl RegionSpec {
    fn check(&self, page_bytes: u64) -> Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        ensure!((1..=40).contains(&self.name.len()) && self.name.chars().all(fits), "the name must be 1 to 40 letters, digits, - or _");
        let in_blocks = self.kind == Kind::Huge || self.pattern.is_by_block();
        let unit = if in_blocks { HUGE_PAGE_BYTES } else { page_bytes };
        let bytes = self.bytes;
        ensure!(
            bytes > 0 && bytes <= BYTES_MAX && bytes.is_multiple_of(unit),
            "\"bytes\" is {bytes}; it must be a multiple of {unit}, up to {BYTES_MAX}"
        );
        ensure!(self.path.is_none() || self.kind == Kind::File, "only regions of kind \"file\" have a \"path\"");
        // The child that accesses shared memory serves no requests.
        let served = matches!(self.pattern, Pattern::Requests(_));
        ensure!(!served || self.kind != Kind::Shared, "regions of kind \"shared\" cannot have the pattern \"requests\"");
        self.pattern.check()
    }
}

impl Pattern {
    fn check(&self) -> Result<()> {
        match self {
            Self::PeriodMs(period) => {
                ensure!((1..=PERIOD_MS_MAX).contains(period), "\"period_ms\" is {period}; 1 to {PERIOD_MS_MAX} are allowed");
            }
            Self::Never(never) => ensure!(never, "\"never\" is false; omit it or give a \"period_ms\""),
            Self::Zipf(Zipf { exponent, touches_per_s }) => {
                ensure!((0.0..=10.0).contains(exponent), "\"exponent\" is {exponent}; 0 to 10 are allowed");
                ensure!((0.001..=1e6).contains(touches_per_s), "\"touches_per_s\" is {touches_per_s}; 0.001 to 1000000 are allowed");
            }
            Self::Poisson(poisson) => poisson.check()?,
            Self::Requests(Requests { exponent, pages }) => {
                ensure!((0.0..=10.0).contains(exponent), "\"exponent\" is {exponent}; 0 to 10 are allowed");
                ensure!((1..=PAGES_MAX).contains(pages), "\"pages\" is {pages}; 1 to {PAGES_MAX} are allowed");
            }
            Self::Phases(phases) => {
                ensure!(!phases.is_empty(), "\"phases\" is empty");
                for Phase { for_s, pattern } in phases {
                    ensure!((0.001..=86_400.0).contains(for_s), "\"for_s\" is {for_s}; 0.001 to 86400 are allowed");
                    if matches!(pattern, Self::Phases(_) | Self::Requests(_)) {
                        bail!("a phase cannot contain \"phases\" or \"requests\"");
                    }
                    pattern.check()?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether any phase has a rate for each block.
    pub(super) fn is_by_block(&self) -> bool {
        self.parts().any(|part| matches!(part, Self::Poisson(_)))
    }

    /// Returns the patterns that it consists of.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Self> {
        let phases = if let Self::Phases(phases) = self { phases.as_slice() } else { &[] };
        let steady = if phases.is_empty() { Some(self) } else { None };
        steady.into_iter().chain(phases.iter().map(|phase| &phase.pattern))
    }
}

impl Poisson {
    fn check(&self) -> Result<()> {
        let Self { least, most, idle, parts, exponent, .. } = self;
        let fits = (1e-6..=1e5).contains(least) && (*least..=1e5).contains(most);
        ensure!(
            fits,
            "\"least\" and \"most\" are {least} and {most}; 0.000001 to 100000 are allowed, and \"least\" must not exceed \"most\""
        );
        ensure!((0.0..=1.0).contains(idle), "\"idle\" is {idle}; 0 to 1 are allowed");
        ensure!((1..=BLOCK_PAGES).contains(parts), "\"parts\" is {parts}; 1 to {BLOCK_PAGES} are allowed");
        ensure!((0.0..=10.0).contains(exponent), "\"exponent\" is {exponent}; 0 to 10 are allowed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks how a region with this JSON pattern, and these further fields, is parsed: the JSON that it is serialized
    /// to, or a part of the error.
    fn check(pattern: &str, more: &str, expected: Result<&str, &str>) {
        let server = if pattern.contains("requests") { r#","server":{"rounds":1,"rate":5}"# } else { "" };
        let bytes = if pattern.contains("poisson") { 2 << 20 } else { 4096 };
        let region = format!(r#"{{"name":"r","bytes":{bytes},"kind":"anon","pattern":{pattern}{more}}}"#);
        let text = format!(r#"{{"seed":1,"regions":[{region}]{server}}}"#);
        match (Spec::parse(text.as_bytes(), 4096), expected) {
            (Ok(spec), Ok(expected)) => assert_eq!(serde_json::to_string(&spec.regions[0].pattern).unwrap(), expected, "{text}"),
            (Err(error), Err(part)) => assert!(format!("{error:#}").contains(part), "{text}: {error:#}"),
            (got, expected) => panic!("{text}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn patterns() {
        for pattern in [
            r#"{"period_ms":100}"#,
            r#"{"never":true}"#,
            r#"{"zipf":{"exponent":0.99,"touches_per_s":2000.0}}"#,
            r#"{"requests":{"exponent":0.99,"pages":2}}"#,
            r#"{"poisson":{"least":0.1,"most":1000.0,"idle":0.5,"parts":4,"exponent":1.0,"draw":2}}"#,
            r#"{"phases":[{"for_s":60.0,"period_ms":100},{"for_s":0.5,"never":true}]}"#,
        ] {
            check(pattern, "", Ok(pattern));
            check(pattern, r#","writes":true,"locked":true"#, Ok(pattern));
        }
    }

    #[test]
    fn refusals() {
        for (pattern, part) in [
            (r#"{"period_ms":0}"#, "\"period_ms\" is 0"),
            (r#"{"period_ms":-5}"#, "-5"),
            (r#"{"never":false}"#, "\"never\" is false"),
            (r#"{"never":true,"period_ms":100}"#, "expected"),
            (r#"{"zipf":{"exponent":99,"touches_per_s":1}}"#, "\"exponent\" is 99"),
            (r#"{"zipf":{"exponent":1,"touches_per_s":0}}"#, "\"touches_per_s\" is 0"),
            (r#"{"requests":{"exponent":-1,"pages":1}}"#, "\"exponent\" is -1"),
            (r#"{"requests":{"exponent":1,"pages":0}}"#, "\"pages\" is 0"),
            (r#"{"phases":[{"for_s":1,"requests":{"exponent":1,"pages":1}}]}"#, "cannot contain"),
            (r#"{"poisson":{"least":2,"most":1}}"#, "must not exceed"),
            (r#"{"poisson":{"least":0,"most":1}}"#, "0 and 1"),
            (r#"{"poisson":{"least":1,"most":1,"idle":2}}"#, "\"idle\" is 2"),
            (r#"{"poisson":{"least":1,"most":1,"parts":513}}"#, "\"parts\" is 513"),
            (r#"{"poisson":{"least":1,"most":1,"rate":5}}"#, "rate"),
            (r#"{"phases":[]}"#, "\"phases\" is empty"),
            (r#"{"phases":[{"period_ms":100}]}"#, "for_s"),
            (r#"{"phases":[{"for_s":1,"period_ms":100,"never":true}]}"#, "a phase's pattern"),
            (r#"{"phases":[{"for_s":1,"phases":[{"for_s":1,"never":true}]}]}"#, "cannot contain"),
        ] {
            check(pattern, "", Err(part));
        }
        let never = r#"{"never":true}"#;
        check(never, r#","color":1"#, Err("color"));
        check(never, r#","path":"/x""#, Err("\"file\""));
        for (text, part) in [
            (r#"{"seed":1,"regions":[]}"#, "0 regions"),
            (
                r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"anon","pattern":{"never":true}}],"server":{"rounds":1}}"#,
                "require each other",
            ),
            (
                r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"anon","pattern":{"requests":{"exponent":1,"pages":1}}}]}"#,
                "require each other",
            ),
            (
                r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"shared","pattern":{"requests":{"exponent":1,"pages":1}}}],"server":{"rounds":1}}"#,
                "shared",
            ),
            (
                r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"anon","pattern":{"requests":{"exponent":1,"pages":1}}}],"server":{"rounds":1,"rate":0}}"#,
                "\"rate\" is Some(0.0)",
            ),
            (r#"{"seed":1,"regions":[{"name":"a b","bytes":4096,"kind":"anon","pattern":{"never":true}}]}"#, "name"),
            (r#"{"seed":1,"regions":[{"name":"a","bytes":4097,"kind":"anon","pattern":{"never":true}}]}"#, "4097"),
            (r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"huge","pattern":{"never":true}}]}"#, "2097152"),
            (r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"anon","pattern":{"poisson":{"least":1,"most":1}}}]}"#, "2097152"),
            (
                r#"{"seed":1,"regions":[{"name":"a","bytes":4096,"kind":"anon","pattern":{"never":true}},{"name":"a","bytes":4096,"kind":"anon","pattern":{"never":true}}]}"#,
                "two regions",
            ),
        ] {
            let error = Spec::parse(text.as_bytes(), 4096).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{text}: {error:#}");
        }
    }
}
