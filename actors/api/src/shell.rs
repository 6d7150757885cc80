//! The actor `node/api`: accepts on the admin socket, receives the gateway's connections, and serves each in a task
//! that ends with this incarnation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_gateway::Framed;
use muster_kernel::{Cx, Fault, Shell};
use muster_messages::{ApiView, WallTime};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use crate::connections::{Open, serve, until_stop};
use crate::http::{Network, serve_http};
use crate::msg::{ApiMsg, Incoming};
use crate::native::{Caller, serve_native};
use crate::service::Service;
use crate::socket::{AdminSocket, ClientProtocol, origin_of, recognise};

/// How long requests over HTTP may take to be answered once this actor is asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

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
