//! Hand-written HTTP of a careless or malicious client.

use std::path::Path;
use std::time::Duration;

use muster_attacks::caller::Caller;
use muster_attacks::cluster::Cluster;
use muster_attacks::watch::rss_kib;
use muster_messages::protocol::Service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

const HTTP: &[&[u8]] = &[b"http/1.1"];

async fn cluster() -> Cluster {
    Cluster::up(Path::new(env!("CARGO_BIN_EXE_muster-attack")), 1, 1).await.expect("a cluster")
}

/// Sends these bytes and reads to the end, with a timeout.
async fn say(caller: &Caller, bytes: &[u8]) -> String {
    let mut stream = caller.tls().await.expect("TLS");
    let mut answer = Vec::new();
    let talk = async {
        // It may answer and close before it has read everything.
        let _closed = stream.write_all(bytes).await;
        let _closed = stream.flush().await;
        let _reset = stream.read_to_end(&mut answer).await;
    };
    timeout(Duration::from_secs(60), talk).await.expect("it answers and closes");
    String::from_utf8_lossy(&answer).into_owned()
}

fn status(answer: &str) -> u16 {
    let word = answer.split_whitespace().nth(1).unwrap_or_else(|| panic!("no status in {answer:?}"));
    word.parse().expect("a status is a number")
}

fn request(line: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn unauthenticated_http_serves_only_livez_and_openapi() {
    let cluster = cluster().await;
    for (node, with_manager_half) in [("n1", true), ("n2", false)] {
        let unauthenticated = Caller::unauthenticated(cluster.node(node).listen, HTTP);
        assert_eq!(status(&say(&unauthenticated, &request("GET /livez")).await), 200);
        let described = say(&unauthenticated, &request("GET /v1/openapi.json")).await;
        let (_, body) = described.split_once("\r\n\r\n").expect("a body");
        let openapi: serde_json::Value = serde_json::from_str(body).expect("the description is JSON");
        let paths = openapi["paths"].as_object().expect("paths");
        assert!(openapi["openapi"].is_string() && paths.len() > 10);
        for (path, methods) in paths.iter().filter(|(path, _)| *path != "/v1/openapi.json" && *path != "/livez") {
            for method in methods.as_object().expect("methods").keys() {
                let line = format!("{} {}", method.to_uppercase(), path.replace(['{', '}', '*'], "x"));
                assert_eq!(status(&say(&unauthenticated, &request(&line)).await), 401, "{node}: {line}");
            }
        }
        // With a worker's certificate: reads, and no more.
        let worker = cluster.node("n2").credentials().expect("an identity");
        let worker = Caller::with(cluster.node(node).listen, HTTP, &worker).expect("good credentials");
        assert_eq!(status(&say(&worker, &request("GET /v1/nodes")).await), 200, "{node}");
        // Metrics are for those who may read the whole cluster, and a node's own for itself.
        for path in ["/v1/metrics", "/v1/prometheus/targets"] {
            let expected = if with_manager_half {
                403
            } else if path == "/v1/metrics" {
                200
            } else {
                409
            };
            let answer = say(&worker, &request(&format!("GET {path}"))).await;
            assert_eq!(status(&answer), expected, "{node}: {path}: {answer}");
        }
        let promote = say(&worker, &request("POST /v1/nodes/n2/promote")).await;
        assert_eq!(status(&promote), 403, "{promote}");
        assert_eq!(status(&say(&worker, &request("GET /v1/nothing")).await), 404);
        println!("{node} has a manager runtime: {with_manager_half}");
    }
}

#[tokio::test]
#[ignore = "full tier"]
async fn slow_or_huge_http_requests_are_dropped_at_no_cost() {
    let cluster = cluster().await;
    let node = cluster.node("n1");
    let before = rss_kib(node.pid().expect("it runs")).expect("it runs");
    let unauthenticated = Caller::unauthenticated(node.listen, HTTP);
    let worker = node_caller(&cluster);

    // A header sent byte by byte is dropped after ten seconds; meanwhile everything else below happens.
    let slow = unauthenticated.clone();
    let slow = tokio::spawn(async move {
        let mut stream = slow.tls().await.expect("TLS");
        let begun = Instant::now();
        for byte in b"GET /livez HTTP/1.1\r\nx-slow: ".iter().chain(std::iter::repeat(&b'a')).take(6000) {
            if stream.write_all(&[*byte]).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            let mut answer = [0; 512];
            match timeout(Duration::from_millis(100), stream.read(&mut answer)).await {
                Ok(_) => break, // an answer or the end
                Err(_) => continue,
            }
        }
        begun.elapsed()
    });

    // Bodies: too long as declared, endless in chunks, and never completed. Unauthenticated bodies are not read at all.
    let head = "POST /v1/tokens HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let oversized = format!("{head}content-length: 9000000000\r\n\r\n").into_bytes();
    assert_eq!(status(&say(&unauthenticated, &oversized).await), 401);
    let chunks = [format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes(), b"400\r\n".to_vec()].concat();
    let chunk = [[b'a'; 1024].as_slice(), b"\r\n400\r\n"].concat();
    let endless = [chunks, chunk.repeat(1024)].concat();
    assert_eq!(status(&say(&worker, &endless).await), 413);
    let withheld = [format!("{head}content-length: 65536\r\n\r\n").into_bytes(), vec![b' '; 65_535]].concat();
    let begun = Instant::now();
    assert_eq!(status(&say(&worker, &withheld).await), 504);
    assert!(begun.elapsed() > Duration::from_secs(5), "it was not dropped at once");
    let long = [b"GET /livez HTTP/1.1\r\nx: ".to_vec(), vec![b'a'; 1 << 20]].concat();
    let refused = say(&unauthenticated, &long).await;
    assert!(refused.is_empty() || status(&refused) == 431, "{refused}");

    // 100,000 unauthenticated requests on a few connections, pipelined.
    let many = b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let mut answered = 0;
    for _ in 0..4 {
        let mut stream = unauthenticated.tls().await.expect("TLS");
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let writing = async {
            for _ in 0..250 {
                if write.write_all(&many).await.is_err() {
                    break;
                }
            }
            write.flush().await
        };
        let reading = async {
            let (mut seen, mut buffer, mut tail) = (0, vec![0; 64 * 1024], Vec::new());
            while seen < 25_000 {
                let read = read.read(&mut buffer).await.unwrap_or(0);
                if read == 0 {
                    break;
                }
                tail.extend_from_slice(&buffer[..read]);
                seen += tail.windows(12).filter(|w| *w == b"HTTP/1.1 401").count();
                tail.drain(..tail.len().saturating_sub(11));
            }
            seen
        };
        let (_, seen) =
            timeout(Duration::from_secs(300), async { tokio::join!(writing, reading) }).await.expect("in time");
        answered += seen;
    }
    assert_eq!(answered, 100_000);

    let waited = slow.await.expect("it ends");
    assert!(waited < Duration::from_secs(60), "a slow header was kept for {waited:?}");
    let grown = rss_kib(node.pid().expect("it runs")).expect("it runs").saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB");
    assert!(!node.log().contains("panicked"), "{}", node.log());
}

fn node_caller(cluster: &Cluster) -> Caller {
    let worker = cluster.node("n2").credentials().expect("an identity");
    assert!(Service::Http.alpn().contains(&HTTP[0]));
    Caller::with(cluster.node("n1").listen, HTTP, &worker).expect("good credentials")
}
