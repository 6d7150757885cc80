//! A program that shows a token of its own to others, and judges theirs, without a secret: its node gives it both.
//!
//! ```text
//! export SPIFFE_ENDPOINT_SOCKET=unix:///run/muster/workloads.sock
//! workload_jwt show AUDIENCE          # a token, judged by this library and by the node; again whenever the keys change
//! workload_jwt judge AUDIENCE TOKEN   # whether a token is good, by this library
//! ```

use std::error::Error;

use spiffe::{JwtSource, JwtSvid, WorkloadApiClient};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["show", audience] => show(audience).await,
        ["judge", audience, token] => judge(audience, token).await,
        _ => Err("show AUDIENCE or judge AUDIENCE TOKEN".into()),
    }
}

async fn show(audience: &str) -> Outcome<()> {
    let source = JwtSource::new().await?;
    let client = WorkloadApiClient::connect_env().await?;
    let mut updates = source.updated();
    loop {
        let svid = source.fetch_jwt_svid([audience]).await?;
        let validated = client.validate_jwt_token(audience, svid.token()).await?;
        let bundles = source.bundle_set()?;
        let keys = bundles.get(svid.spiffe_id().trust_domain()).map_or(0, |bundle| bundle.jwt_authorities().count());
        let judged = JwtSvid::parse_and_validate(svid.token(), &*bundles, &[audience])?;
        println!("token of {} {} keys {keys} by {}", validated.spiffe_id(), judged.spiffe_id(), svid.key_id());
        println!("{}", svid.token());
        updates.changed().await?;
    }
}

async fn judge(audience: &str, token: &str) -> Outcome<()> {
    let bundles = WorkloadApiClient::connect_env().await?.fetch_jwt_bundles().await?;
    let judged = JwtSvid::parse_and_validate(token, &bundles, &[audience])?;
    println!("good {}", judged.spiffe_id());
    Ok(())
}
