//! Queries Prometheus for one value per machine, by instant queries to its HTTP API (`/api/v1/query`).
//!
//! Responses are foreign input: they are bounded and checked. A failed query is no evidence, and holds the rollout.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::guard::Values;

/// Time limit of a query.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
const BYTES_MAX: u64 = 64 << 20;

#[derive(Deserialize)]
struct Response {
    status: String,
    error: Option<String>,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    #[serde(default)]
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct Sample {
    metric: BTreeMap<String, String>,
    /// Time, and the value as text.
    value: (f64, String),
}

/// Queries the current values. `$since` in the query is replaced by the time since the stage began, at least one
/// second.
pub fn ask(url: &str, query: &str, machine_label: &str, since: Duration) -> Values {
    let query = query.replace("$since", &format!("{}s", since.as_secs().max(1)));
    respond(url, &query, |body| values(body, machine_label))
}

/// Queries the current value of a query whose result is a single one.
///
/// # Errors
/// The query failed, or has no value or several.
pub fn ask_one(url: &str, query: &str) -> Result<f64, String> {
    respond(url, query, single)
}

/// The body of an HTTP resource, such as metrics in the text exposition format.
///
/// # Errors
/// It could not be read, or has another status than success.
pub fn body(url: &str) -> Result<Vec<u8>, String> {
    let mut response = agent(url)?.get(url).call().map_err(|error| format!("{url}: {error}"))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(BYTES_MAX).read_to_vec().map_err(|error| format!("{url}: {error}"))?;
    if status.is_success() { Ok(body) } else { Err(format!("{url}: HTTP {status}")) }
}

/// Queries, and parses the response.
fn respond<T>(url: &str, query: &str, parse: impl Fn(&[u8]) -> Result<T, String>) -> Result<T, String> {
    let agent = agent(url)?;
    let address = format!("{}/api/v1/query", url.trim_end_matches('/'));
    let mut response = agent.get(&address).query("query", query).call().map_err(|error| format!("{address}: {error}"))?;
    let status = response.status();
    let body = response.body_mut().with_config().limit(BYTES_MAX).read_to_vec().map_err(|error| format!("{address}: {error}"))?;
    parse(&body).map_err(|what| format!("{address}: HTTP {status}: {what}"))
}

fn agent(url: &str) -> Result<ureq::Agent, String> {
    if cfg!(not(feature = "tls")) && url.starts_with("https://") {
        return Err(format!("{url}: this program was built without HTTPS to Prometheus; build it with `--features s3`, or use http"));
    }
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).max_redirects(0);
    #[cfg(feature = "tls")]
    let config = config.tls_config(tls());
    Ok(config.build().into())
}

/// Verifies servers with the certificate authorities that the host trusts.
#[cfg(feature = "tls")]
fn tls() -> ureq::tls::TlsConfig {
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier);
    config.unversioned_rustls_crypto_provider(provider).build()
}

/// Parses the samples of a response.
fn samples(body: &[u8]) -> Result<Vec<Sample>, String> {
    let answer: Response = serde_json::from_slice(body).map_err(|error| format!("not a response of Prometheus: {error}"))?;
    if answer.status != "success" {
        return Err(answer.error.unwrap_or_else(|| format!("status {:?}", answer.status)));
    }
    let data = answer.data.ok_or("a response without data")?;
    if data.result_type != "vector" {
        return Err(format!("a {} instead of one value per machine; use an instant vector", data.result_type));
    }
    serde_json::from_value(data.result).map_err(|error| format!("not a response of Prometheus: {error}"))
}

/// Parses the only value of a response.
fn single(body: &[u8]) -> Result<f64, String> {
    match samples(body)?.as_slice() {
        [Sample { value: (_, text), .. }] => text.parse().map_err(|_| format!("{text:?} is not a number")),
        several => Err(format!("{} values instead of one; aggregate them with `sum`", several.len())),
    }
}

/// Parses the values of a response, by machine.
fn values(body: &[u8], machine_label: &str) -> Values {
    let mut values = BTreeMap::new();
    for Sample { metric, value: (_, text) } in samples(body)? {
        let name = metric
            .get(machine_label)
            .ok_or_else(|| format!("a value without the label {machine_label}; keep it with `sum by ({machine_label})`"))?;
        // An instance is a machine and a port; an IPv6 address is in brackets.
        let machine = match name.rsplit_once(':') {
            Some((machine, port)) if port.chars().all(|c| c.is_ascii_digit()) => machine,
            _ => name,
        };
        let value: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
        if values.insert(machine.to_owned(), value).is_some() {
            return Err(format!("several values for {machine}; aggregate them with `sum by ({machine_label})`"));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const ANSWER: &str = r#"{"status":"success","data":{"resultType":"vector","result":[
        {"metric":{"instance":"web-1:9100"},"value":[1795201200.5,"0.25"]},
        {"metric":{"instance":"web-2"},"value":[1795201200.5,"NaN"]}]}}"#;

    #[test]
    fn a_response_has_one_value_per_machine() {
        let found = values(ANSWER.as_bytes(), "instance").unwrap();
        assert_eq!(found.get("web-1"), Some(&0.25));
        assert!(found["web-2"].is_nan() && found.len() == 2);
    }

    #[test]
    fn a_query_of_one_value_has_exactly_one() {
        assert!(single(ANSWER.as_bytes()).unwrap_err().contains("2 values instead of one"));
        let one = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"7.5"]}]}}"#;
        assert_eq!(single(one.as_bytes()), Ok(7.5));
        assert!(single(one.replace("7.5", "x").as_bytes()).is_err());
    }

    #[test]
    fn invalid_responses_are_rejected() {
        let check = |body: &str, piece: &str| {
            let error = values(body.as_bytes(), "instance").unwrap_err();
            assert!(error.contains(piece), "{error}");
        };
        check("<html>", "not a response of Prometheus");
        check(r#"{"status":"error","errorType":"bad_data","error":"parse error at char 3"}"#, "parse error at char 3");
        check(r#"{"status":"success"}"#, "without data");
        check(r#"{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}"#, "a scalar instead");
        check(&ANSWER.replace("web-2", "web-1"), "several values for web-1");
        check(&ANSWER.replace("instance", "node"), "without the label instance");
        check(&ANSWER.replace("0.25", "much"), "\"much\" is not a number");
        for end in 0..ANSWER.len() {
            assert!(values(&ANSWER.as_bytes()[..end], "instance").is_err());
        }
    }

    /// Starts a server for one request; returns its URL and the request.
    fn served(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(asked).unwrap()
        });
        (url, server)
    }

    #[test]
    fn a_query_contains_the_time_since_the_stage_began() {
        let (url, server) = served(
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[]}}",
        );
        assert_eq!(ask(&url, "rate(e{a=\"b\"}[$since])", "instance", Duration::from_secs(90)), Ok(BTreeMap::new()));
        let asked = server.join().unwrap();
        assert!(asked.starts_with("GET /api/v1/query?query=rate(e%7Ba%3D%22b%22%7D%5B90s%5D) HTTP/1.1\r\n"), "{asked}");
    }

    #[test]
    fn server_errors_are_reported_with_the_url() {
        let (url, server) = served("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nstarting");
        let error = ask(&url, "up", "instance", Duration::ZERO).unwrap_err();
        assert!(error.contains("503") && error.contains(&url), "{error}");
        server.join().unwrap();
        let error = ask("http://127.0.0.1:1", "up", "instance", Duration::ZERO).unwrap_err();
        assert!(error.contains("127.0.0.1:1"), "{error}");
    }
}
