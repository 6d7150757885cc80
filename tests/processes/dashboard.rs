//! `muster dashboard` as a program; `tests/browser` has what a browser sees.

use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;

use crate::harness::{EndedMuster, ForegroundMuster};

/// The head of the answer to a request for a page.
fn asked(port: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens on loopback");
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer.lines().next().unwrap_or_default().to_owned()
}

/// The dashboard starts, answers and ends without any daemon; its link is in no argument.
#[test]
fn dashboard_needs_no_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let without_daemon = ["--socket", "/nonexistent/muster.sock", "dashboard", "--no-open"];
    let allow = ["--allow-host", "tunnel.example:8000"];
    let mut dashboard =
        ForegroundMuster::start(folder.path(), &[&["-o", "json"], &without_daemon[..], &allow].concat());
    dashboard.wait_for_line("}");
    let printed: serde_json::Value = serde_json::from_str(dashboard.seen()).expect("one JSON document");
    assert_eq!(printed["actions"], false);
    let url = printed["url"].as_str().expect("a link");
    let (address, secret) = url.split_once("/#").expect("the secret is in the fragment");
    let port = address.strip_prefix("http://127.0.0.1:").expect("loopback");
    assert_eq!(secret.len(), 43);
    let arguments = std::fs::read_to_string(format!("/proc/{}/cmdline", printed["pid"])).expect("it runs");
    assert!(!arguments.contains(secret), "{arguments}");
    for (host, answer) in [
        (format!("127.0.0.1:{port}"), "HTTP/1.1 200 OK"),
        ("tunnel.example:8000".to_owned(), "HTTP/1.1 200 OK"),
        ("evil.example".to_owned(), "HTTP/1.1 421 Misdirected Request"),
    ] {
        assert_eq!(asked(port, &host), answer, "{host}");
    }
    let second = EndedMuster::new(folder.path(), &[&without_daemon[..], &["--port", port]].concat()).ended(1);
    assert!(second.stderr.contains(&format!("cannot listen on port {port} of loopback")), "{}", second.stderr);
    dashboard.signal(Signal::TERM);
    assert_eq!(dashboard.exit(), Some(0));
    for host in ["http://tunnel.example:8000", "tunnel.example", "tunnel.example:x", "a b:1"] {
        let wrong = EndedMuster::new(folder.path(), &[&without_daemon[..], &["--allow-host", host]].concat()).ended(2);
        assert!(wrong.stderr.contains("NAME:PORT"), "{host}: {}", wrong.stderr);
    }
}
