//! The routes of the API, in one table: requests are matched by it, and the published description is made of it.

use pool::{EmcId, Generation, SliceId};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use crate::api::{
    AssignRequest, Assignment, Code, Done, Lease, LeaseRequest, OfflineFailed, Offlined, Permissions, PoolStatus, Refused, RenewRequest,
    Renewed, SliceList, WorkList,
};
use crate::book::Ask;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Everybody with a certificate that this manager takes.
    Anybody,
    /// The host in the path.
    Host,
    /// An operator.
    Operator,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A host takes a lease.
    Lease,
    /// A host keeps it.
    Renew,
    /// Slices for a VM.
    Assign,
    /// And back.
    Return,
    /// A slice is offline.
    Offlined,
    /// Or cannot be.
    OfflineFailed,
    /// The pool at a glance.
    Pool,
    /// Every slice.
    Slices,
    /// Who may access what.
    Permissions,
    /// An EMC fails.
    EmcFailed,
    /// And is repaired.
    EmcRepaired,
    /// This description.
    Description,
    /// For Prometheus.
    Metrics,
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// One route.
pub(crate) struct Route {
    /// The method.
    pub method: &'static str,
    /// The path, with names of parameters in braces.
    pub path: &'static str,
    /// Parameters behind the question mark, all needed: name and whether it is a number.
    pub query: &'static [(&'static str, bool)],
    /// What it does.
    pub operation: Operation,
    /// Its name in clients that are made from the description.
    pub name: &'static str,
    /// For people.
    pub summary: &'static str,
    /// Who may ask.
    pub who: Who,
    /// What is sent.
    pub body: Option<SchemaOf>,
    /// What is answered; none for text.
    pub answer: Option<SchemaOf>,
    /// How it is refused, beyond what befalls any request.
    pub refusals: &'static [Code],
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// All routes.
pub(crate) const ROUTES: &[Route] = &[
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/lease",
        query: &[],
        operation: Operation::Lease,
        name: "take_lease",
        summary: "Take a lease. Its epoch goes with every other request, and voids all epochs before it. Answered with all that the host has.",
        who: Who::Host,
        body: Some(of::<LeaseRequest>),
        answer: Some(of::<Lease>),
        refusals: &[Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/renew",
        query: &[],
        operation: Operation::Renew,
        name: "renew_lease",
        summary: "Keep the lease, and hear what there is to do. Say this three times in the time that a lease lasts.",
        who: Who::Host,
        body: Some(of::<RenewRequest>),
        answer: Some(of::<Renewed>),
        refusals: &[Code::Fenced],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/assignments",
        query: &[],
        operation: Operation::Assign,
        name: "assign",
        summary: "Ask for the slices of a VM that is about to start: all of one EMC, zero, and this host's alone. Said again, it has the same answer.",
        who: Who::Host,
        body: Some(of::<AssignRequest>),
        answer: Some(of::<Assignment>),
        refusals: &[Code::Fenced, Code::Conflict, Code::Over, Code::Short, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "DELETE",
        path: "/v1/hosts/{host}/assignments/{vm}",
        query: &[("epoch", true), ("request", false)],
        operation: Operation::Return,
        name: "give_back",
        summary: "Give back what a VM has. Returns at once; the host takes the slices offline at leisure, as the work in the answer says.",
        who: Who::Host,
        body: None,
        answer: Some(of::<WorkList>),
        refusals: &[Code::Fenced, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/slices/{emc}/{index}/offlined",
        query: &[],
        operation: Operation::Offlined,
        name: "slice_offlined",
        summary: "A slice is offline and its file is closed. The manager makes it zero and gives it to others.",
        who: Who::Host,
        body: Some(of::<Offlined>),
        answer: Some(of::<Done>),
        refusals: &[Code::Fenced, Code::Stale, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/slices/{emc}/{index}/offline-failed",
        query: &[],
        operation: Operation::OfflineFailed,
        name: "slice_offline_failed",
        summary: "A slice cannot be taken offline now. It is stuck, and the host is asked again later.",
        who: Who::Host,
        body: Some(of::<OfflineFailed>),
        answer: Some(of::<Done>),
        refusals: &[Code::Fenced, Code::Stale, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "GET",
        path: "/v1/pool",
        query: &[],
        operation: Operation::Pool,
        name: "pool_status",
        summary: "The pool at a glance: counts, EMCs, hosts and their leases, slices that do not come back.",
        who: Who::Anybody,
        body: None,
        answer: Some(of::<PoolStatus>),
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/v1/slices",
        query: &[],
        operation: Operation::Slices,
        name: "list_slices",
        summary: "Every slice: what it does, whose it is.",
        who: Who::Anybody,
        body: None,
        answer: Some(of::<SliceList>),
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/v1/permissions",
        query: &[],
        operation: Operation::Permissions,
        name: "permissions",
        summary: "The permission table of each EMC: the one host that may access each slice.",
        who: Who::Anybody,
        body: None,
        answer: Some(of::<Permissions>),
        refusals: &[],
    },
    Route {
        method: "POST",
        path: "/v1/emcs/{emc}/failed",
        query: &[],
        operation: Operation::EmcFailed,
        name: "emc_failed",
        summary: "An EMC has failed: its slices are nobody's, and the VMs that had some are lost.",
        who: Who::Operator,
        body: None,
        answer: Some(of::<Done>),
        refusals: &[Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/emcs/{emc}/repaired",
        query: &[],
        operation: Operation::EmcRepaired,
        name: "emc_repaired",
        summary: "An EMC works again. Its slices are made zero and given out.",
        who: Who::Operator,
        body: None,
        answer: Some(of::<Done>),
        refusals: &[Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "GET",
        path: "/v1/openapi.json",
        query: &[],
        operation: Operation::Description,
        name: "description",
        summary: "This description.",
        who: Who::Anybody,
        body: None,
        answer: None,
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/metrics",
        query: &[],
        operation: Operation::Metrics,
        name: "metrics",
        summary: "Metrics in Prometheus' text format.",
        who: Who::Anybody,
        body: None,
        answer: None,
        refusals: &[],
    },
];

/// A route that a request is for, and the parameters in its path.
pub(crate) struct Match {
    /// The route.
    pub route: &'static Route,
    /// Parameters by name, decoded.
    pub parameters: Vec<(&'static str, String)>,
}

fn refused(error: Code, message: String) -> Refused {
    Refused { error, message }
}

/// Finds the route of a request.
///
/// # Errors
/// When there is none, or not with this method.
pub(crate) fn find(method: &str, path: &str) -> Result<Match, Refused> {
    let mut methods = Vec::new();
    for route in ROUTES {
        let Some(parameters) = parameters(route.path, path) else { continue };
        if route.method == method {
            return Ok(Match { route, parameters });
        }
        methods.push(route.method);
    }
    if methods.is_empty() {
        return Err(refused(Code::NotFound, format!("there is no {path} here; see /v1/openapi.json")));
    }
    Err(refused(Code::MethodNotAllowed, format!("{path} takes {}, not {method}", methods.join(" and "))))
}

fn parameters(pattern: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    let mut segments = path.split('/');
    for want in pattern.split('/') {
        let segment = segments.next()?;
        match want.strip_prefix('{').and_then(|want| want.strip_suffix('}')) {
            Some(name) => found.push((name, decode(segment)?)),
            None if want == segment => {}
            None => return None,
        }
    }
    segments.next().is_none().then_some(found)
}

/// A segment of a path or a value of a query, without its percent signs.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

impl Match {
    /// A parameter of the path.
    #[must_use]
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Refused> {
        let text = self.parameter(name);
        text.parse().map_err(|_| refused(Code::BadRequest, format!("{name} {text:?} is no such number")))
    }

    fn slice(&self) -> Result<SliceId, Refused> {
        Ok(SliceId { emc: EmcId(self.number("emc")?), index: self.number("index")? })
    }

    /// What the request asks of the writer; none if it only reads.
    ///
    /// # Errors
    /// When it makes no sense.
    pub(crate) fn ask(&self, query: &str, body: &[u8]) -> Result<Option<Ask>, Refused> {
        let host = || self.parameter("host").to_owned();
        Ok(Some(match self.route.operation {
            Operation::Lease => Ask::Lease { host: host(), instance: parse::<LeaseRequest>(body)?.instance },
            Operation::Renew => Ask::Renew { host: host(), epoch: parse::<RenewRequest>(body)?.epoch },
            Operation::Assign => {
                let AssignRequest { epoch, request, vm, slices } = parse(body)?;
                Ask::Assign { host: host(), epoch, request, vm, slices: slices.0 }
            }
            Operation::Return => {
                let Query { epoch, request } = Query::parse(query)?;
                Ask::Return { host: host(), epoch, request, vm: self.parameter("vm").to_owned() }
            }
            Operation::Offlined => {
                let Offlined { epoch, generation } = parse(body)?;
                Ask::Offlined { host: host(), epoch, slice: self.slice()?, generation: Generation(generation) }
            }
            Operation::OfflineFailed => {
                let OfflineFailed { epoch, generation, why } = parse(body)?;
                Ask::OfflineFailed { host: host(), epoch, slice: self.slice()?, generation: Generation(generation), why }
            }
            Operation::EmcFailed => Ask::EmcFailed(EmcId(self.number("emc")?)),
            Operation::EmcRepaired => Ask::EmcRepaired(EmcId(self.number("emc")?)),
            Operation::Pool | Operation::Slices | Operation::Permissions | Operation::Description | Operation::Metrics => return Ok(None),
        }))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| refused(Code::BadRequest, format!("the body is no such request: {error}")))
}

struct Query {
    epoch: u64,
    request: String,
}

impl Query {
    fn parse(query: &str) -> Result<Self, Refused> {
        let value = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.split_once('=').filter(|(known, _)| *known == name));
            pair.and_then(|(_, value)| decode(value))
        };
        let epoch = value("epoch").and_then(|epoch| epoch.parse().ok());
        epoch
            .zip(value("request"))
            .map(|(epoch, request)| Self { epoch, request })
            .ok_or_else(|| refused(Code::BadRequest, "say ?epoch=NUMBER&request=NAME".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_find_their_routes() {
        let check = |method: &str, path: &str, want: Result<Operation, Code>| {
            let found = find(method, path).map(|found| found.route.operation).map_err(|refused| refused.error);
            assert_eq!(found, want, "{method} {path}");
        };
        check("POST", "/v1/hosts/a/lease", Ok(Operation::Lease));
        check("DELETE", "/v1/hosts/a/assignments/vm-1", Ok(Operation::Return));
        check("GET", "/metrics", Ok(Operation::Metrics));
        check("GET", "/v1/hosts/a/lease", Err(Code::MethodNotAllowed));
        check("GET", "/v1/pool/", Err(Code::NotFound));
        check("GET", "/", Err(Code::NotFound));
        check("POST", "/v1/hosts/%zz/lease", Err(Code::NotFound));
    }

    #[test]
    fn names_may_hold_anything() {
        let found = find("DELETE", "/v1/hosts/a/assignments/a%2Fb%20c").unwrap();
        let ask = found.ask("request=r%26&epoch=7", b"").unwrap();
        let want = Ask::Return { host: "a".to_owned(), epoch: 7, request: "r&".to_owned(), vm: "a/b c".to_owned() };
        assert_eq!(ask, Some(want));
    }

    #[test]
    fn nonsense_is_refused_wherever_it_is_cut() {
        let check = |path: &str, body: &str| {
            let found = find("POST", path).unwrap();
            assert!(found.ask("", body.as_bytes()).is_ok(), "{body}");
            for end in 0..body.len() {
                assert_eq!(found.ask("", &body.as_bytes()[..end]).unwrap_err().error, Code::BadRequest);
            }
        };
        check("/v1/hosts/a/assignments", r#"{"epoch":1,"request":"r","vm":"v","slices":3}"#);
        check("/v1/hosts/a/slices/0/1/offline-failed", r#"{"epoch":1,"generation":2,"why":"guest full"}"#);
        let unknown = find("POST", "/v1/hosts/a/renew").unwrap().ask("", br#"{"epoch":1,"epohc":2}"#).unwrap_err();
        assert!(unknown.message.contains("epohc"), "{}", unknown.message);
        assert!(find("POST", "/v1/emcs/70000/failed").unwrap().ask("", b"").is_err());
        assert!(find("DELETE", "/v1/hosts/a/assignments/v").unwrap().ask("epoch=x&request=r", b"").is_err());
    }
}
