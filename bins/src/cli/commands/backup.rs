//! `muster backup FILE`: writes the state to a file, verified before it gets its name.

use std::io::Write as _;
use std::path::Path;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use muster_client::{Failure, Outcome, Target};
use muster_messages::ErrorCode;
use muster_messages::protocol::Service;
use muster_store::backup::BackupHead;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::Context;

/// The backup's first line, and where it was written.
#[derive(Serialize)]
struct Written<'a> {
    #[serde(flatten)]
    head: &'a BackupHead,
    file: String,
}

pub async fn run(ctx: &Context, file: &Path) -> Outcome<u8> {
    let to_stdout = file == Path::new("-");
    if !to_stdout && file.exists() {
        let message = format!("{} already exists; choose another file", file.display());
        return Err(Failure::refused("file_exists", message));
    }
    let late = || {
        let text = "the backup did not arrive in time: it needs a quorum (`muster status`), and time for a large state; retry with a longer \
                    --timeout";
        Failure::new(ErrorCode::TimedOut, text)
    };
    let fetched = tokio::time::timeout(ctx.client.timeout(), fetch(ctx.client.target())).await;
    let backup = fetched.map_err(|_| late())??;
    let head = muster_store::backup::verify(&backup)
        .map_err(|why| Failure::internal(format!("received an invalid backup: {why}")))?;
    if to_stdout {
        return std::io::stdout().write_all(&backup).map(|()| 0).map_err(|e| Failure::io("cannot write to stdout", &e));
    }
    // Readable only by its owner from the first byte, and complete or absent.
    let write = || muster_pki::write_atomic(&std::path::absolute(file)?, &backup);
    write().map_err(|e| Failure::io(format!("cannot write {}", file.display()), &e))?;
    let document = serde_json::to_string(&Written { head: &head, file: file.display().to_string() });
    ctx.out.document(
        &document.map_err(Failure::internal)?,
        || file.display().to_string(),
        || {
            let secret = match head.unlock_version {
                Some(version) => format!(
                    "it is sealed under version {version} of the unlock key (`muster autolock key`): keep that key, nothing else opens it"
                ),
                None => "it contains the root key: anyone who reads it can impersonate the cluster".to_owned(),
            };
            format!(
                "backup of {} at revision {} written to {} ({} bytes); {secret}",
                head.name,
                head.revision,
                file.display(),
                backup.len()
            )
        },
    );
    Ok(0)
}

async fn fetch(target: &Target) -> Outcome<Bytes> {
    match target {
        Target::Socket(path) => {
            let stream = UnixStream::connect(path).await.map_err(|e| {
                Failure::new(ErrorCode::Unreachable, format!("cannot connect to {}: {e}", path.display()))
            })?;
            ask(stream, "localhost").await
        }
        Target::Managers { dialer, managers } => {
            let mut trouble = Failure::new(ErrorCode::Unreachable, "no manager address is known");
            for manager in managers {
                let asked = match dialer.dial(manager, Service::Http, None).await {
                    Ok(dialed) => ask(dialed.stream.into_inner(), manager).await,
                    Err(error) => Err(Failure::new(ErrorCode::Unreachable, error.to_string())),
                };
                match asked {
                    // Another manager may have a quorum.
                    Err(failure) if failure.is_transient() => trouble = failure,
                    answer => return answer,
                }
            }
            Err(trouble)
        }
    }
}

async fn ask<S>(stream: S, host: &str) -> Outcome<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let lost = |why: hyper::Error| Failure::new(ErrorCode::Unreachable, format!("the connection was lost: {why}"));
    let (mut sender, connection): (SendRequest<Empty<Bytes>>, _) =
        handshake(TokioIo::new(stream)).await.map_err(lost)?;
    tokio::spawn(connection); // the reader of the answer sees how it ends
    let request = Request::get("/v1/backup").header(header::HOST, host).body(Empty::new());
    let answer = sender.send_request(request.map_err(Failure::internal)?).await.map_err(lost)?;
    let status = answer.status();
    let body = answer.into_body().collect().await.map_err(lost)?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    Err(Failure::from_http(status.as_u16(), &serde_json::from_slice(&body).unwrap_or_default()))
}
