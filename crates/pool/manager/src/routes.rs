//! The API's table of routes. Requests are matched by it, and the published description is generated from it.

use pool::{EmcId, Generation, SliceId};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use crate::api::{
    AssignRequest, Assignment, Code, Empty, ErrorResponse, Lease, LeaseRequest, OfflineFailedRequest, OfflinedRequest, Permissions,
    PoolStatus, RenewRequest, RenewResponse, SliceList, WorkList,
};
use crate::connection::decode;
use crate::ledger::Request;

/// Clients that may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Every host and operator of the pool.
    Any,
    /// The host in the path.
    Host,
    /// Operators.
    Operator,
}

/// Operation of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A host takes a lease.
    Lease,
    /// A host renews its lease.
    Renew,
    /// A host requests slices for a VM.
    Assign,
    /// A host returns the slices of a VM.
    Return,
    /// A host reports a slice offline.
    Offlined,
    /// A host reports that a slice cannot be taken offline.
    OfflineFailed,
    /// Status of the pool.
    Pool,
    /// All slices.
    Slices,
    /// Permission tables.
    Permissions,
    /// An EMC has failed.
    HostFenced,
    EmcFailed,
    /// An EMC works again.
    EmcRepaired,
    /// Description of the API.
    Description,
    /// Metrics for Prometheus.
    Metrics,
}

type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// One route.
pub(crate) struct Route {
    /// HTTP method.
    pub method: &'static str,
    /// Path, with parameters in braces.
    pub path: &'static str,
    /// Required query parameters: name, and whether the value is a number.
    pub query: &'static [(&'static str, bool)],
    /// The operation.
    pub operation: Operation,
    /// Operation id in the description.
    pub name: &'static str,
    /// Summary in the description.
    pub summary: &'static str,
    /// Clients that may use it.
    pub access: Access,
    /// Request body.
    pub body: Option<SchemaOf>,
    /// Response body; `None` for text.
    pub response: Option<SchemaOf>,
    /// Error codes in addition to those of every route.
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
        summary: "Take a lease. Its epoch is required in every other request, and voids all earlier epochs. The response has all assignments of the host.",
        access: Access::Host,
        body: Some(of::<LeaseRequest>),
        response: Some(of::<Lease>),
        refusals: &[Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/renew",
        query: &[],
        operation: Operation::Renew,
        name: "renew_lease",
        summary: "Renew the lease. The response has the actions that the host must perform. Renew three times per lease duration.",
        access: Access::Host,
        body: Some(of::<RenewRequest>),
        response: Some(of::<RenewResponse>),
        refusals: &[Code::Fenced],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/assignments",
        query: &[],
        operation: Operation::Assign,
        name: "assign",
        summary: "Request slices for a VM that is about to start: all of one EMC, zeroed, and accessible only to this host. A repeated request has the same response.",
        access: Access::Host,
        body: Some(of::<AssignRequest>),
        response: Some(of::<Assignment>),
        refusals: &[Code::Fenced, Code::Conflict, Code::Over, Code::Short, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "DELETE",
        path: "/v1/hosts/{host}/assignments/{vm}",
        query: &[("epoch", true), ("request", false)],
        operation: Operation::Return,
        name: "give_back",
        summary: "Return the slices of a VM. The call does not wait: the host then takes the slices offline, as required by the actions in the response.",
        access: Access::Host,
        body: None,
        response: Some(of::<WorkList>),
        refusals: &[Code::Fenced, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/slices/{emc}/{index}/offlined",
        query: &[],
        operation: Operation::Offlined,
        name: "slice_offlined",
        summary: "Report that a slice is offline and its file is closed. The manager zeroes the slice and assigns it to others.",
        access: Access::Host,
        body: Some(of::<OfflinedRequest>),
        response: Some(of::<Empty>),
        refusals: &[Code::Fenced, Code::Stale, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/slices/{emc}/{index}/offline-failed",
        query: &[],
        operation: Operation::OfflineFailed,
        name: "slice_offline_failed",
        summary: "Report that a slice cannot be taken offline now. The slice is stuck, and the manager requires it again later.",
        access: Access::Host,
        body: Some(of::<OfflineFailedRequest>),
        response: Some(of::<Empty>),
        refusals: &[Code::Fenced, Code::Stale, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "GET",
        path: "/v1/pool",
        query: &[],
        operation: Operation::Pool,
        name: "pool_status",
        summary: "Status of the pool: counts, EMCs, hosts and their leases, and overdue slices.",
        access: Access::Any,
        body: None,
        response: Some(of::<PoolStatus>),
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/v1/slices",
        query: &[],
        operation: Operation::Slices,
        name: "list_slices",
        summary: "All slices with state and owner.",
        access: Access::Any,
        body: None,
        response: Some(of::<SliceList>),
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/v1/permissions",
        query: &[],
        operation: Operation::Permissions,
        name: "permissions",
        summary: "Permission table of each EMC: the host that may access each slice.",
        access: Access::Any,
        body: None,
        response: Some(of::<Permissions>),
        refusals: &[],
    },
    Route {
        method: "POST",
        path: "/v1/hosts/{host}/fenced",
        query: &[],
        operation: Operation::HostFenced,
        name: "host_fenced",
        summary: "Report that the machine of a host without a lease is off, or cannot access the pool's devices any more. Its slices of devices are zeroed and can be assigned.",
        access: Access::Operator,
        body: None,
        response: Some(of::<Empty>),
        refusals: &[Code::Conflict, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/emcs/{emc}/failed",
        query: &[],
        operation: Operation::EmcFailed,
        name: "emc_failed",
        summary: "Report that an EMC has failed. Its slices have no owner any more, and VMs with memory on it are lost.",
        access: Access::Operator,
        body: None,
        response: Some(of::<Empty>),
        refusals: &[Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "POST",
        path: "/v1/emcs/{emc}/repaired",
        query: &[],
        operation: Operation::EmcRepaired,
        name: "emc_repaired",
        summary: "Report that an EMC works again. Its slices are zeroed and can be assigned. An EMC with a device is repaired only while no host has a lease.",
        access: Access::Operator,
        body: None,
        response: Some(of::<Empty>),
        refusals: &[Code::Conflict, Code::Ledger, Code::LedgerFull],
    },
    Route {
        method: "GET",
        path: "/v1/openapi.json",
        query: &[],
        operation: Operation::Description,
        name: "description",
        summary: "This description.",
        access: Access::Any,
        body: None,
        response: None,
        refusals: &[],
    },
    Route {
        method: "GET",
        path: "/metrics",
        query: &[],
        operation: Operation::Metrics,
        name: "metrics",
        summary: "Metrics in Prometheus text format.",
        access: Access::Any,
        body: None,
        response: None,
        refusals: &[],
    },
];

/// The route of a request, with the parameters in its path.
pub(crate) struct Match {
    /// The route.
    pub route: &'static Route,
    /// Parameters by name, decoded.
    pub parameters: Vec<(&'static str, String)>,
}

fn refused(error: Code, message: String) -> ErrorResponse {
    ErrorResponse { error, message }
}

/// Finds the route of a request.
///
/// # Errors
/// There is no such path, or it does not accept this method.
pub(crate) fn find(method: &str, path: &str) -> Result<Match, ErrorResponse> {
    let mut methods = Vec::new();
    for route in ROUTES {
        let Some(parameters) = parameters(route.path, path) else { continue };
        if route.method == method {
            return Ok(Match { route, parameters });
        }
        methods.push(route.method);
    }
    if methods.is_empty() {
        return Err(refused(Code::NotFound, format!("there is no {path}; see /v1/openapi.json")));
    }
    Err(refused(Code::MethodNotAllowed, format!("{path} accepts {}, not {method}", methods.join(" and "))))
}

fn parameters(pattern: &'static str, path: &str) -> Option<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    let mut segments = path.split('/');
    for expected in pattern.split('/') {
        let segment = segments.next()?;
        match expected.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => found.push((name, decode(segment)?)),
            None if expected == segment => {}
            None => return None,
        }
    }
    segments.next().is_none().then_some(found)
}

impl Match {
    /// A parameter of the path.
    #[must_use]
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, ErrorResponse> {
        let text = self.parameter(name);
        text.parse().map_err(|_| refused(Code::BadRequest, format!("{name} {text:?} is not a valid number")))
    }

    fn slice(&self) -> Result<SliceId, ErrorResponse> {
        Ok(SliceId { emc: EmcId(self.number("emc")?), index: self.number("index")? })
    }

    /// The request to the ledger; `None` if the route only reads.
    ///
    /// # Errors
    /// The request is malformed.
    pub(crate) fn request(&self, query: &str, body: &[u8]) -> Result<Option<Request>, ErrorResponse> {
        let host = || self.parameter("host").to_owned();
        Ok(Some(match self.route.operation {
            Operation::Lease => Request::Lease { host: host(), instance: parse::<LeaseRequest>(body)?.instance },
            Operation::Renew => Request::Renew { host: host(), epoch: parse::<RenewRequest>(body)?.epoch },
            Operation::Assign => {
                let AssignRequest { epoch, request, vm, slices } = parse(body)?;
                Request::Assign { host: host(), epoch, request, vm, slices }
            }
            Operation::Return => {
                let Query { epoch, request } = Query::parse(query)?;
                Request::Return { host: host(), epoch, request, vm: self.parameter("vm").to_owned() }
            }
            Operation::Offlined => {
                let OfflinedRequest { epoch, generation } = parse(body)?;
                Request::Offlined { host: host(), epoch, slice: self.slice()?, generation: Generation(generation) }
            }
            Operation::OfflineFailed => {
                let OfflineFailedRequest { epoch, generation, why } = parse(body)?;
                Request::OfflineFailed { host: host(), epoch, slice: self.slice()?, generation: Generation(generation), why }
            }
            Operation::HostFenced => Request::HostFenced(host()),
            Operation::EmcFailed => Request::EmcFailed(EmcId(self.number("emc")?)),
            Operation::EmcRepaired => Request::EmcRepaired(EmcId(self.number("emc")?)),
            Operation::Pool | Operation::Slices | Operation::Permissions | Operation::Description | Operation::Metrics => return Ok(None),
        }))
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ErrorResponse> {
    serde_json::from_slice(body).map_err(|error| refused(Code::BadRequest, format!("invalid request body: {error}")))
}

struct Query {
    epoch: u64,
    request: String,
}

impl Query {
    fn parse(query: &str) -> Result<Self, ErrorResponse> {
        let value = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.split_once('=').filter(|(known, _)| *known == name));
            pair.and_then(|(_, value)| decode(value))
        };
        let epoch = value("epoch").and_then(|epoch| epoch.parse().ok());
        epoch
            .zip(value("request"))
            .map(|(epoch, request)| Self { epoch, request })
            .ok_or_else(|| refused(Code::BadRequest, "give ?epoch=NUMBER&request=NAME".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_matched_to_routes() {
        let check = |method: &str, path: &str, expected: Result<Operation, Code>| {
            let found = find(method, path).map(|found| found.route.operation).map_err(|refused| refused.error);
            assert_eq!(found, expected, "{method} {path}");
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
    fn encoded_names_are_decoded() {
        let found = find("DELETE", "/v1/hosts/a/assignments/a%2Fb%20c").unwrap();
        let request = found.request("request=r%26&epoch=7", b"").unwrap();
        let expected = Request::Return { host: "a".to_owned(), epoch: 7, request: "r&".to_owned(), vm: "a/b c".to_owned() };
        assert_eq!(request, Some(expected));
    }

    #[test]
    fn truncated_and_unknown_requests_are_refused() {
        let check = |path: &str, body: &str| {
            let found = find("POST", path).unwrap();
            assert!(found.request("", body.as_bytes()).is_ok(), "{body}");
            for end in 0..body.len() {
                assert_eq!(found.request("", &body.as_bytes()[..end]).unwrap_err().error, Code::BadRequest);
            }
        };
        check("/v1/hosts/a/assignments", r#"{"epoch":1,"request":"r","vm":"v","slices":3}"#);
        check("/v1/hosts/a/slices/0/1/offline-failed", r#"{"epoch":1,"generation":2,"why":"guest full"}"#);
        let unknown = find("POST", "/v1/hosts/a/renew").unwrap().request("", br#"{"epoch":1,"epohc":2}"#).unwrap_err();
        assert!(unknown.message.contains("epohc"), "{}", unknown.message);
        assert!(find("POST", "/v1/emcs/70000/failed").unwrap().request("", b"").is_err());
        assert!(find("DELETE", "/v1/hosts/a/assignments/v").unwrap().request("epoch=x&request=r", b"").is_err());
    }
}
