//! Programs without a secret of their own that know each other by their SPIFFE IDs: they get certificates from their node, and follow
//! its roots.
//!
//! ```text
//! export SPIFFE_ENDPOINT_SOCKET=unix:///run/muster/workloads.sock
//! workload_tls watch                              # prints what it holds, with each change
//! workload_tls serve 127.0.0.1:7000 TRUST_DOMAIN  # answers calls of all programs of this trust domain
//! workload_tls call 127.0.0.1:7000 SERVER         # calls a program with this SPIFFE ID, again and again
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use spiffe::{SpiffeId, X509Source};
use spiffe_rustls::{authorizer, mtls_client, mtls_server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Between two calls of a program that calls for as long as it runs. It waits for nothing: the test waits for its lines.
const CALL_INTERVAL: Duration = Duration::from_millis(50);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let source = X509Source::new().await?;
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["watch"] => watch(&source).await,
        ["serve", address, trust_domain] => serve(source, address, trust_domain).await,
        ["call", address, server] => call(source, address, server).await,
        _ => Err("watch, serve ADDRESS TRUST_DOMAIN or call ADDRESS SERVER".into()),
    }
}

async fn watch(source: &X509Source) -> Outcome<()> {
    let mut updates = source.updated();
    loop {
        match source.svid() {
            Ok(svid) => {
                let id = svid.spiffe_id();
                let bundles = source.bundle_set()?;
                let roots = bundles.get(id.trust_domain()).map_or(0, |bundle| bundle.authorities().len());
                let hint = svid.hint().unwrap_or("-");
                println!("holds {id} hint {hint} roots {roots} chain {}", svid.cert_chain().len());
            }
            Err(error) => println!("holds nothing: {error}"),
        }
        updates.changed().await?;
    }
}

async fn serve(source: X509Source, address: &str, trust_domain: &str) -> Outcome<()> {
    let config = mtls_server(source.clone()).authorize(authorizer::trust_domains([trust_domain])?).build()?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(address).await?;
    println!("serves as {}", source.svid()?.spiffe_id());
    loop {
        let (stream, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let answered = async {
                let mut stream = acceptor.accept(stream).await?;
                stream.write_all(b"hello").await?;
                stream.shutdown().await
            };
            if let Err(error) = answered.await {
                println!("refused a call: {error}");
            }
        });
    }
}

async fn call(source: X509Source, address: &str, server: &str) -> Outcome<()> {
    let server: SpiffeId = server.parse()?;
    println!("calls with a certificate of issuer {}", issuer(source.svid()?.cert_chain()[0].as_bytes()));
    let config = mtls_client(source).authorize(authorizer::exact([server])?).build()?;
    let connector = TlsConnector::from(Arc::new(config));
    for number in 1u64.. {
        let called = async {
            let stream = TcpStream::connect(address).await?;
            let mut stream = connector.connect(ServerName::try_from("localhost")?, stream).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Outcome::Ok(answer)
        };
        match called.await {
            Ok(answer) => println!("call {number}: {answer}"),
            Err(error) => println!("call {number} failed: {error}"),
        }
        tokio::time::sleep(CALL_INTERVAL).await;
    }
    Ok(())
}

/// The key identifier of the root that signed a certificate (DER), as hex: the extension `AuthorityKeyIdentifier` with a key of 20 bytes.
fn issuer(certificate: &[u8]) -> String {
    const ID: [u8; 3] = [0x55, 0x1d, 0x23];
    const HEAD: usize = 6;
    let at = certificate.windows(ID.len()).position(|bytes| bytes == ID).map(|at| at + ID.len() + HEAD);
    let key = at.and_then(|at| certificate.get(at..at + 20)).unwrap_or_default();
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}
