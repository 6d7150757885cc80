//! An elector on a lease in the kubeconfig's cluster: a Kubernetes cluster, or Muster's subset of one.
//!
//! ```text
//! muster kubeconfig > kubeconfig.yaml
//! KUBECONFIG=kubeconfig.yaml cargo run -p muster-elector --features kube --example kube_elector -- default/printer host-1
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_elector::kubernetes::{KubeClient, LeaseLock};
use muster_elector::{Candidate, Election, ElectorConfig, Ending, LeaderElector, Setup, Term};
use muster_messages::wire::LeaseRef;

/// Prints events, and waits while it leads.
struct Talker;

impl Candidate for Talker {
    fn on_started_leading(&self, term: Term) -> BoxFuture<'static, ()> {
        println!(
            "leading, fencing token {}",
            term.token().map_or_else(|| "none".to_owned(), |token| token.to_string())
        );
        async move {
            term.ended().await;
            // Clean up here: the lease is renewed until this returns.
        }
        .boxed()
    }
    fn on_stopped_leading(&self, ending: &Ending) {
        println!("stopped leading: {ending}");
    }
    fn on_new_leader(&self, leader: Option<&str>) {
        println!("leader: {}", leader.unwrap_or("none"));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [lease, identity] = &args[..] else {
        eprintln!("usage: kube_elector NAMESPACE/LEASE IDENTITY");
        return ExitCode::from(2);
    };
    let (namespace, name) = lease.split_once('/').unwrap_or(("default", lease));
    let lease = LeaseRef { namespace: namespace.to_owned(), name: name.to_owned() };
    match elect(lease, identity).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube_elector: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn elect(lease: LeaseRef, identity: &str) -> Result<(), Box<dyn std::error::Error>> {
    let client = KubeClient::new(kube::Client::try_default().await?);
    let lock = LeaseLock::new(Arc::new(client), lease.clone());
    let election = Election::Kubernetes(Arc::new(lock));
    let elector =
        LeaderElector::start(Setup::new(ElectorConfig::new(lease, identity), election, Arc::new(Talker))).await?;
    tokio::select! {
        ended = elector.ended() => ended?,
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            elector.stop();
            elector.ended().await?;
        }
    }
    Ok(())
}
