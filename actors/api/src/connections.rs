//! The connections of the API: how one of the gateway is served, when it ends with the actor, and how many are open.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_audit::{Origin, Via};
use muster_gateway::{Connection, Framed};
use muster_messages::protocol::Service as Port;
use tokio::sync::watch;

use crate::http::{Network, serve_http};
use crate::native::serve_native;
use crate::service::Service;

/// Ends when the actor is asked to stop. Then it holds its receiver no longer: what serves a connection has another one.
pub(crate) fn until_stop(mut stops: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
    async move { stops.wait_for(|stops| *stops).await.map_or((), drop) }.boxed()
}

/// Serves a connection of the gateway until it ends.
pub(crate) async fn serve(service: Service, connection: Connection, stops: watch::Receiver<bool>) {
    let caller = connection.principal();
    let via = Via::Addr(connection.remote.to_string());
    let serial = connection.identity.as_ref().map(|identity| identity.serial.clone());
    let origin = Origin { via, serial, forwarder: None };
    match connection.service {
        Port::Http => {
            let (kill, stop) = (connection.kill.clone(), until_stop(stops.clone()));
            let end = async move {
                tokio::select! {
                    () = kill.retired() => {}
                    () = stop => {}
                }
            };
            let network = Network {
                refused: connection.refused,
                source: Some(connection.remote.ip()),
                origin,
                end: Some(end.boxed()),
            };
            serve_http(service, caller, network, connection.stream).await;
            drop(stops); // a stop has waited for it
        }
        _ => {
            drop(stops); // the native protocol has no such end, and a stop does not wait for it
            let frames = Framed::new(connection.stream).with_limit(service.ports.limits.frame(&caller));
            let ended = serve_native(service, Arc::new(move || caller.clone()), origin, frames).await;
            if let Err(error) = ended {
                tracing::debug!(%error, remote = %connection.remote, "API connection ended");
            }
        }
    }
    drop(connection.permit);
}

/// Counts an open connection until it is dropped.
pub(crate) struct Open(Arc<AtomicU64>);
impl Open {
    pub fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}
impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
