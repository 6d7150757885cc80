//! Works only while it holds a lease: start it on several machines, and one of them works at a time.

use std::time::Duration;

use kube::{Client, ResourceExt};
use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), kube::Error> {
    let [lease, identity] = [1, 2].map(|word| std::env::args().nth(word).expect("lease_lock LEASE IDENTITY"));
    let client = Client::try_default().await?; // the file that KUBECONFIG names
    let holder_id = identity.clone();
    let params = LeaseLockParams { lease_name: lease, holder_id, lease_ttl: Duration::from_secs(4) };
    let lock = LeaseLock::new(client, "default", params);
    let mut leads = false;
    loop {
        let held = match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(lease)) => Some(lease),
            Ok(LeaseLockResult::NotAcquired(_)) => None,
            Err(error) => {
                println!("{identity}: {error}"); // also when another writer was faster
                None
            }
        };
        match held.as_ref().and_then(|lease| lease.annotations().get("muster.dev/fencing-token")) {
            Some(token) if !leads => println!("{identity} leads with fencing token {token}"), // send it with every write
            None if leads => println!("{identity} stopped leading"),
            _ => {}
        }
        leads = held.is_some();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
