//! This node's part in reconcilers: like any program on it, it uses its own API with its own identity.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_api::Service as Api;
use muster_kernel::{Clock, Spec};
use muster_messages::wire::{ApiCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, NodeId, Principal, Release, RequestId, millis};
use muster_reconciler::{Cluster, CommandRunner, Reconcilers, Releases, Setup, reconcilers_spec};

use super::commands::{Allowed, Commands};
use super::node::Shared;

/// The cluster, as this node reaches it.
struct OwnCluster {
    api: Api,
    me: NodeId,
}

impl OwnCluster {
    fn call(&self, request: Request, timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let (api, caller) = (self.api.clone(), Principal::Node(self.me));
        let call = ApiCall {
            id: 0,
            request_id: RequestId::fresh(Clock.wall(), rand::random()),
            timeout_ms: millis(timeout),
            request,
        };
        async move { api.answer(caller, call).await }.boxed()
    }
}

impl muster_elector::Cluster for OwnCluster {
    fn ask(&self, request: LeaseRequest, timeout: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        self.call(Request::Lease(request), timeout)
    }
}

impl Cluster for OwnCluster {
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>> {
        self.call(Request::Reconciler(request), timeout)
    }
}

/// The cluster, as this node's own actors reach it.
pub(super) fn own_cluster(shared: &Shared) -> Arc<dyn Cluster> {
    Arc::new(OwnCluster { api: shared.api.clone(), me: shared.me })
}

/// `node/reconcilers`: a group for every reconciler for which there is a definition with objects or commands
/// that this node can run: of the release that is declared for its scope, else of the node's own.
pub(super) fn spec(shared: &Shared, allowed: Arc<Allowed>, releases: Releases) -> Option<(Spec, Reconcilers)> {
    let release: Release = shared.config.release.parse().ok()?;
    let own_cluster = Arc::new(OwnCluster { api: shared.api.clone(), me: shared.me });
    let (socket, logs) = (shared.config.socket.clone(), Arc::clone(&shared.run_logs));
    let commands: Arc<dyn CommandRunner> = Arc::new(Commands { socket, allowed, logs });
    let setup = Setup {
        node: Some(shared.me),
        releases,
        objects: true,
        commands: Some(commands),
        ..Setup::new(own_cluster, shared.me.to_string(), release)
    };
    reconcilers_spec(setup).ok()
}
