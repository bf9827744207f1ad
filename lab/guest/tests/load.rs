//! The load generators against small servers of all protocols within the test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test; clippy's own exemption does not reach the functions beside the tests")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Output};

use serde_json::Value;

const PROTOCOLS: [&str; 3] = ["redis", "memcached", "http"];

/// Behaviour of a server.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Stores and returns values.
    Correct,
    /// Returns every value without its last byte.
    Short,
    /// Refuses to store.
    Full,
    /// Answers the first request with text of another protocol.
    Foreign,
    /// Closes the connection after the first request.
    Closing,
}

/// A request in any protocol.
enum Request {
    Get(String),
    Set(String, Vec<u8>),
}

type Reader = BufReader<UnixStream>;

fn line(reader: &mut Reader) -> Option<String> {
    let mut line = String::new();
    (reader.read_line(&mut line).ok()? > 0).then(|| line.strip_suffix("\r\n").unwrap().to_owned())
}

fn bytes(reader: &mut Reader, length: usize) -> Vec<u8> {
    let mut bytes = exactly(reader, length + 2);
    assert_eq!(bytes.split_off(length), b"\r\n");
    bytes
}

fn exactly(reader: &mut Reader, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads one request; `None` at the end of the connection.
fn request(protocol: &str, reader: &mut Reader) -> Option<Request> {
    let first = line(reader)?;
    if protocol == "memcached" {
        let words: Vec<&str> = first.split(' ').collect();
        return Some(match words[..] {
            ["get", key] => Request::Get(key.to_owned()),
            ["set", key, "0", "0", length] => Request::Set(key.to_owned(), bytes(reader, length.parse().unwrap())),
            _ => panic!("{first}"),
        });
    }
    if protocol == "http" {
        let head: Vec<String> = std::iter::from_fn(|| line(reader).filter(|line| !line.is_empty())).collect();
        let length = head.iter().find_map(|line| line.strip_prefix("Content-Length: "));
        return Some(match first.split(' ').collect::<Vec<_>>()[..] {
            ["GET", path, "HTTP/1.1"] => Request::Get(path.to_owned()),
            ["PUT", path, "HTTP/1.1"] => Request::Set(path.to_owned(), exactly(reader, length.unwrap().parse().unwrap())),
            _ => panic!("{first}"),
        });
    }
    let count: usize = first.strip_prefix('*').unwrap().parse().unwrap();
    let mut words = (0..count).map(|_| {
        let length = line(reader).unwrap().strip_prefix('$').unwrap().parse().unwrap();
        bytes(reader, length)
    });
    let verb = words.next().unwrap();
    let key = String::from_utf8(words.next().unwrap()).unwrap();
    match verb.as_slice() {
        b"GET" => Some(Request::Get(key)),
        b"SET" => Some(Request::Set(key, words.next().unwrap())),
        _ => panic!("{verb:?}"),
    }
}

/// Returns a reply: a value or a miss for a read, success or a refusal for a write.
fn reply(protocol: &str, request: &Request, value: Option<&[u8]>) -> Vec<u8> {
    let (Request::Get(key) | Request::Set(key, _)) = request;
    let length = value.map_or(0, <[u8]>::len);
    let (head, tail) = match (protocol, request, value) {
        ("redis", Request::Get(_), Some(_)) => (format!("${length}\r\n"), "\r\n"),
        ("redis", Request::Get(_), None) => ("$-1\r\n".into(), ""),
        ("redis", Request::Set(..), Some(_)) => return b"+OK\r\n".to_vec(),
        ("redis", Request::Set(..), None) => ("-OOM out of memory\r\n".into(), ""),
        ("memcached", Request::Get(_), Some(_)) => (format!("VALUE {key} 0 {length}\r\n"), "\r\nEND\r\n"),
        ("memcached", Request::Get(_), None) => ("END\r\n".into(), ""),
        ("memcached", Request::Set(..), Some(_)) => return b"STORED\r\n".to_vec(),
        ("memcached", Request::Set(..), None) => ("SERVER_ERROR out of memory\r\n".into(), ""),
        (_, Request::Get(_), Some(_)) => (format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"), ""),
        (_, Request::Get(_), None) => ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into(), ""),
        (_, Request::Set(..), Some(_)) => return b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n".to_vec(),
        (_, Request::Set(..), None) => ("HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n".into(), ""),
    };
    [head.as_bytes(), value.unwrap_or_default(), tail.as_bytes()].concat()
}

/// Serves one connection and returns the stored values.
fn serve(protocol: &str, behaviour: Behaviour, stream: UnixStream, mut store: HashMap<String, Vec<u8>>) -> HashMap<String, Vec<u8>> {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = request(protocol, &mut reader) {
        let reply = match (&request, behaviour) {
            (_, Behaviour::Closing) => break,
            (_, Behaviour::Foreign) => b"220 mail.lab\r\n\r\n".to_vec(),
            (Request::Set(..), Behaviour::Full) => reply(protocol, &request, None),
            (Request::Set(key, value), _) => {
                store.insert(key.clone(), value.clone());
                reply(protocol, &request, Some(value))
            }
            (Request::Get(key), behaviour) => {
                let value = store.get(key);
                let cut = value.map(|value| &value[..value.len() - usize::from(matches!(behaviour, Behaviour::Short))]);
                reply(protocol, &request, cut)
            }
        };
        // The client may close the connection before it has read everything.
        if writer.write_all(&reply).is_err() {
            break;
        }
    }
    store
}

/// Runs one load against a server with the values of `store`; returns its output and the server's values afterwards.
fn load(protocol: &str, behaviour: Behaviour, store: HashMap<String, Vec<u8>>, arguments: &str) -> (Output, HashMap<String, Vec<u8>>) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("server");
    let listener = UnixListener::bind(&socket).unwrap();
    let protocol_name = protocol.to_owned();
    let server = std::thread::spawn(move || serve(&protocol_name, behaviour, listener.accept().unwrap().0, store));
    let output = Command::new(env!("CARGO_BIN_EXE_labguest"))
        .args(["load", protocol, "--socket"])
        .arg(&socket)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    (output, server.join().unwrap())
}

/// Returns the last line of a load's report, which must be its summary.
fn summary(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let summary: Value = serde_json::from_str(text.lines().last().unwrap_or_else(|| panic!("{output:?}"))).unwrap();
    assert_eq!(summary["summary"], true, "{text}");
    summary
}

fn filled(protocol: &str) -> HashMap<String, Vec<u8>> {
    let (output, store) = load(protocol, Behaviour::Correct, HashMap::new(), "fill --keys 300 --seed 5 --depth 32");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(summary(&output)["stored"], 300);
    store
}

#[test]
fn fill_stores_distinct_values() {
    for protocol in PROTOCOLS {
        let store = filled(protocol);
        let values: std::collections::HashSet<&Vec<u8>> = store.values().collect();
        assert_eq!((store.len(), values.len()), (300, 300), "{protocol}");
        assert!(store.values().all(|value| (100..=4000).contains(&value.len())), "{protocol}");
    }
}

/// Runs `arguments` on a filled store and checks fields of the summary.
fn check(protocol: &str, behaviour: Behaviour, arguments: &str, expected: &[(&str, u64)]) -> Output {
    let (output, _) = load(protocol, behaviour, filled(protocol), arguments);
    assert!(output.status.success(), "{arguments}: {output:?}");
    let summary = summary(&output);
    for (field, value) in expected {
        assert_eq!(summary[field], *value, "{field} of {arguments}: {summary}");
    }
    output
}

#[test]
fn runs_count_replies_by_result() {
    for protocol in PROTOCOLS {
        let reads = "run --keys 300 --seed 5 --requests 2000 --write-share 0";
        check(protocol, Behaviour::Correct, reads, &[("requests", 2000), ("hits", 2000), ("misses", 0), ("errors", 0)]);
        check(protocol, Behaviour::Correct, &format!("{reads} --zipf 1"), &[("requests", 2000), ("hits", 2000)]);
        check(protocol, Behaviour::Correct, &format!("{reads} --depth 1"), &[("requests", 2000), ("hits", 2000)]);
        check(protocol, Behaviour::Short, reads, &[("requests", 2000), ("hits", 0), ("errors", 2000)]);
        let writes = "run --keys 300 --seed 5 --requests 2000 --write-share 1";
        check(protocol, Behaviour::Correct, writes, &[("requests", 2000), ("stored", 2000), ("errors", 0)]);
        check(protocol, Behaviour::Full, writes, &[("requests", 2000), ("stored", 0), ("errors", 2000)]);
        // No key above 300 was filled, and the hot keys end there.
        let beyond = "run --keys 3000 --seed 5 --requests 500 --write-share 0 --hot-share 0 --hot-fraction 0.1 --warm-fraction 0.9";
        check(protocol, Behaviour::Correct, beyond, &[("requests", 500), ("hits", 0), ("misses", 500)]);
    }
}

#[test]
fn value_factor_scales_values() {
    let (output, store) = load("http", Behaviour::Correct, HashMap::new(), "fill --keys 40 --value-factor 64");
    assert!(output.status.success(), "{output:?}");
    assert!(store.values().all(|value| (6400..=256_000).contains(&value.len()) && value.len() % 64 == 0));
    let (output, _) = load("http", Behaviour::Correct, store, "run --keys 40 --requests 100 --value-factor 64 --write-share 0");
    assert_eq!(summary(&output)["hits"], 100, "{output:?}");
}

#[test]
fn a_rate_is_kept_and_each_second_is_reported() {
    let output =
        check("redis", Behaviour::Correct, "run --keys 300 --seed 5 --seconds 2.2 --rate 500", &[("requests", 1100), ("errors", 0)]);
    let text = String::from_utf8(output.stdout).unwrap();
    let seconds: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seconds.len(), 3, "{text}");
    assert_eq!((&seconds[0]["t"], &seconds[1]["t"]), (&1.into(), &2.into()), "{text}");
    let sum = seconds[0]["ops"].as_u64().unwrap() + seconds[1]["ops"].as_u64().unwrap();
    assert!((400..=1100).contains(&sum), "{text}");
}

#[test]
fn broken_servers_are_errors() {
    for protocol in PROTOCOLS {
        for (behaviour, arguments, error) in [
            (Behaviour::Full, "fill --keys 10", "not every key was stored"),
            (Behaviour::Foreign, "fill --keys 10", "invalid reply"),
            (Behaviour::Closing, "run --keys 10 --requests 10", "server"),
        ] {
            let (output, _) = load(protocol, behaviour, HashMap::new(), arguments);
            let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && error_text.contains(error), "{protocol} {arguments}: {error_text}");
        }
    }
}

#[test]
fn invalid_arguments_are_rejected() {
    for (arguments, error) in [
        ("load redis fill --keys 10", "--socket"),
        ("load redis --socket /no/such/socket fill --keys 10", "/no/such/socket"),
        ("load redis --socket /no/such/socket fill --keys 0", "--keys"),
        ("load redis --socket /no/such/socket run --keys 1", "--seconds"),
        ("load redis --socket /no/such/socket run --keys 1 --seconds NaN", "--seconds"),
        ("load redis --socket /no/such/socket run --keys 1 --seconds 1 --hot-share 1.1", "--hot-share"),
        ("load redis --socket /no/such/socket run --keys 1 --seconds 1 --rate 0", "--rate"),
        ("load redis --socket /no/such/socket run --keys 1 --seconds 1 --zipf 11", "--zipf"),
        ("load redis --socket /no/such/socket run --keys 1 --seconds 1 --zipf 1 --hot-fraction 1", "--hot-fraction"),
        ("load http --socket /no/such/socket run --keys 1 --seconds 1 --value-factor 0", "--value-factor"),
        ("load redis --socket /no/such/socket --depth 0 run --keys 1 --seconds 1", "--depth"),
        ("load memcached --socket /a --port 1 run --keys 1 --seconds 1", "--port"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_labguest")).args(arguments.split(' ')).output().unwrap();
        let error_text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error_text.contains(error), "{arguments}: {error_text}");
    }
}
