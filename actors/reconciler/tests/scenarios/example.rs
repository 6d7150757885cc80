//! A program that serves only while it is admitted.

use std::sync::Arc;

use muster_reconciler::{Admission, Link, Member, Socket};

async fn run(serve: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
    let link = Link::new(Socket("/run/muster/muster.sock".into()));
    let member = Member::new("apiserver", "host-1", "2.0.0".parse()?).needs("schema", "2.0.0".parse()?);
    let waiting = Admission::announce(Arc::new(link), member).await?;
    let guard = waiting.ready().await?;
    tokio::select! {
        () = serve => {}
        why = guard.revoked() => eprintln!("no longer admitted: {why}"),
    }
    guard.drain().await;
    Ok(())
}
