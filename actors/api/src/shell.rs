//! The actor `node/api`: accepts on the admin socket, receives the gateway's connections, and serves each in a task
//! that ends with this incarnation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_audit::{Origin, Via};
use muster_gateway::{Connection, Framed};
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::protocol::{Named, Service as Port};
use muster_messages::{ApiView, WallTime};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore, mpsc};

use crate::http::{Network, serve_http};
use crate::native::{Caller, serve_native};
use crate::service::Service;
use crate::socket::{AdminSocket, ClientProtocol, origin_of, recognise};

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
}

impl ApiShell {
    /// An API that serves these connections.
    pub fn new(service: Service, incoming: Incoming, socket: Option<Arc<AdminSocket>>, socket_caller: Caller) -> Self {
        Self { service, incoming, socket, socket_caller, open: Arc::new(AtomicU64::new(0)) }
    }

    fn accept_from_gateway(&self, cx: &Cx<ApiMsg>) {
        let (service, incoming, open, tasks) =
            (self.service.clone(), Arc::clone(&self.incoming), Arc::clone(&self.open), cx.clone());
        cx.spawn(async move {
            let mut incoming = incoming.lock().await;
            while let Some(connection) = incoming.recv().await {
                let (service, permit) = (service.clone(), Open::new(&open));
                tasks.spawn_apart(async move {
                    serve(service, connection).await;
                    drop(permit);
                });
            }
            let _stopping = tasks.me().tell(ApiMsg::GatewayGone);
        });
    }

    fn accept_from_socket(&self, cx: &Cx<ApiMsg>, socket: Arc<AdminSocket>) {
        let (service, open, tasks, caller) =
            (self.service.clone(), Arc::clone(&self.open), cx.clone(), Arc::clone(&self.socket_caller));
        cx.spawn(async move {
            let slots = Arc::new(Semaphore::new(service.ports.limits.socket_connections));
            loop {
                let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
                let stream = socket.accept().await;
                let (service, permit, caller) = (service.clone(), Open::new(&open), Arc::clone(&caller));
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
                            serve_http(service, caller(), Network { origin, ..Network::default() }, stream).await;
                        }
                        Ok(ClientProtocol::Nothing) | Err(_) => {}
                    }
                    drop((permit, slot));
                });
            }
        });
    }
}

async fn serve(service: Service, connection: Connection) {
    let caller = connection.principal();
    let via = Via::Addr(connection.remote.to_string());
    let serial = connection.identity.as_ref().map(|identity| identity.serial.clone());
    let origin = Origin { via, serial, forwarder: None };
    match connection.service {
        Port::Http => {
            let network = Network { refused: connection.refused, source: Some(connection.remote.ip()), origin };
            serve_http(service, caller, network, connection.stream).await;
        }
        _ => {
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
