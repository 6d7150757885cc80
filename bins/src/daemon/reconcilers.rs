//! What this node does about reconcilers: it asks its own API, as itself, like any program on it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_api::Service as Api;
use muster_kernel::{Clock, Spec};
use muster_messages::wire::{ApiCall, LeaseRequest, ReconcilerRequest, Request};
use muster_messages::{ErrorBody, NodeId, Principal, Release, RequestId, millis};
use muster_reconciler::{Cluster, CommandRunner, Reconcilers, Setup, reconcilers_spec};

use super::commands::Commands;
use super::node::Shared;

/// The cluster, as this node reaches it.
struct Own {
    api: Api,
    me: NodeId,
}

impl Own {
    fn call(&self, request: Request, patience: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        let (api, caller) = (self.api.clone(), Principal::Node(self.me));
        let call = ApiCall {
            id: 0,
            request_id: RequestId::fresh(Clock.wall(), rand::random()),
            timeout_ms: millis(patience),
            request,
        };
        async move { api.answer(caller, call).await }.boxed()
    }
}

impl muster_elector::Cluster for Own {
    fn ask(&self, request: LeaseRequest, patience: Duration) -> BoxFuture<'static, Result<String, ErrorBody>> {
        self.call(Request::Lease(request), patience)
    }
}

impl Cluster for Own {
    fn reconcile(
        &self,
        request: ReconcilerRequest,
        patience: Duration,
    ) -> BoxFuture<'static, Result<String, ErrorBody>> {
        self.call(Request::Reconciler(request), patience)
    }
}

/// The cluster as this node's own actors ask it.
pub(super) fn own(shared: &Shared) -> Arc<dyn Cluster> {
    Arc::new(Own { api: shared.api.clone(), me: shared.me })
}

/// `node/reconcilers`: a group for every reconciler that this node's release has a definition of, with objects or a command.
pub(super) fn spec(shared: &Shared) -> Option<(Spec, Reconcilers)> {
    let release: Release = shared.config.release.parse().ok()?;
    let own = Arc::new(Own { api: shared.api.clone(), me: shared.me });
    let programs = &shared.config.settings.reconcilers.commands;
    let commands: Arc<dyn CommandRunner> =
        Arc::new(Commands { socket: shared.config.socket.clone(), programs: programs.clone() });
    let setup = Setup {
        node: Some(shared.me),
        objects: true,
        commands: programs.any().then_some(commands),
        ..Setup::new(own, shared.me.to_string(), release)
    };
    reconcilers_spec(setup).ok()
}
