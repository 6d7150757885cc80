//! The actor `node/api`: accepts on the admin socket, receives the gateway's connections, and serves each in a task
//! that ends with this incarnation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use muster_audit::{Origin, Via};
use muster_gateway::{Connection, Framed};
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::{Named, Service as Port};
use muster_messages::{ApiView, WallTime};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};

use crate::http::{Network, serve_http};
use crate::native::{Caller, serve_native};
use crate::service::Service;
use crate::socket::{AdminSocket, ClientProtocol, origin_of, recognise};

/// How long requests over HTTP may take to be answered once this actor is asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// The API's private messages. Requests arrive through its connections.
#[derive(Named)]
#[strum(serialize_all = "snake_case")]
pub enum ApiMsg {
    /// The gateway's channel ended: the gateway restarts, and a new registration follows with a new incarnation.
    GatewayGone,
}

/// Connections from the gateway, shared by the incarnations of this actor.
pub type Incoming = Arc<Mutex<mpsc::Receiver<Connection>>>;

/// The API's shell.
pub struct ApiShell {
    service: Service,
    incoming: Incoming,
    socket: Option<Arc<AdminSocket>>,
    /// A manager's socket acts as operator, a worker's as its node.
    socket_caller: Caller,
    open: Arc<AtomicU64>,
    /// Whether it stops. Each HTTP connection holds a receiver.
    stops: watch::Sender<bool>,
}

impl ApiShell {
    /// An API that serves these connections.
    pub fn new(service: Service, incoming: Incoming, socket: Option<Arc<AdminSocket>>, socket_caller: Caller) -> Self {
        let (open, stops) = (Arc::new(AtomicU64::new(0)), watch::Sender::new(false));
        Self { service, incoming, socket, socket_caller, open, stops }
    }

    fn accept_from_gateway(&self, cx: &Cx<ApiMsg>) {
        let (service, incoming, open, tasks) =
            (self.service.clone(), Arc::clone(&self.incoming), Arc::clone(&self.open), cx.clone());
        let stops = self.stops.clone();
        cx.spawn(async move {
            let mut incoming = incoming.lock().await;
            while let Some(connection) = incoming.recv().await {
                let (service, permit, stops) = (service.clone(), Open::new(&open), stops.subscribe());
                tasks.spawn_apart(async move {
                    serve(service, connection, stops).await;
                    drop(permit);
                });
            }
            let _stopping = tasks.me().tell(ApiMsg::GatewayGone);
        });
    }

    fn accept_from_socket(&self, cx: &Cx<ApiMsg>, socket: Arc<AdminSocket>) {
        let (service, open, tasks, caller) =
            (self.service.clone(), Arc::clone(&self.open), cx.clone(), Arc::clone(&self.socket_caller));
        let stops = self.stops.clone();
        cx.spawn(async move {
            let slots = Arc::new(Semaphore::new(service.ports.limits.socket_connections));
            loop {
                let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
                let stream = socket.accept().await;
                let (service, permit, caller) = (service.clone(), Open::new(&open), Arc::clone(&caller));
                let stops = stops.clone();
                tasks.spawn_apart(async move {
                    let origin = origin_of(&stream);
                    match recognise(stream).await {
                        Ok(ClientProtocol::Native(stream)) => {
                            let ended = serve_native(service, caller, origin, Framed::new(stream)).await;
                            if let Err(error) = ended {
                                tracing::debug!(%error, "admin socket connection ended");
                            }
                        }
                        Ok(ClientProtocol::Http(stream)) => {
                            let (waits, end) = (stops.subscribe(), Some(until_stop(stops.subscribe())));
                            serve_http(service, caller(), Network { origin, end, ..Network::default() }, stream).await;
                            drop(waits); // a stop has waited for it
                        }
                        Ok(ClientProtocol::Nothing) | Err(_) => {}
                    }
                    drop((permit, slot));
                });
            }
        });
    }
}

/// Ends when the actor is asked to stop. Then it holds its receiver no longer: what serves a connection has another one.
fn until_stop(mut stops: watch::Receiver<bool>) -> BoxFuture<'static, ()> {
    async move { stops.wait_for(|stops| *stops).await.map_or((), drop) }.boxed()
}

async fn serve(service: Service, connection: Connection, stops: watch::Receiver<bool>) {
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

struct Open(Arc<AtomicU64>);
impl Open {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}
impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shell for ApiShell {
    type Msg = ApiMsg;
    const KIND: &'static str = "Api";

    async fn started(&mut self, cx: &Cx<ApiMsg>) -> Result<(), Fault> {
        self.accept_from_gateway(cx);
        if let Some(socket) = &self.socket {
            self.accept_from_socket(cx, Arc::clone(socket));
        }
        Ok(())
    }

    async fn handle(&mut self, _cx: &Cx<ApiMsg>, msg: ApiMsg) -> Result<(), Fault> {
        match msg {
            ApiMsg::GatewayGone => Ok(()),
        }
    }

    /// HTTP-3.
    async fn stopping(&mut self, _cx: &Cx<ApiMsg>) {
        self.stops.send_replace(true);
        let _in_time = tokio::time::timeout(STOP_TIMEOUT, self.stops.closed()).await;
    }

    fn view(&self) -> Value {
        let c = &self.service.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!(ApiView {
            connections: load(&self.open),
            in_progress: load(&c.in_progress),
            answered: load(&c.answered),
            refused: load(&c.refused),
            overloaded: load(&c.overloaded),
            events_dropped: load(&c.events_dropped),
            last_backup_at: Some(c.last_backup_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(WallTime),
        })
    }
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
