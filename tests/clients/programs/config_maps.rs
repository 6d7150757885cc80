//! A custom reconciler: keeps the config maps of a Kubernetes API server as its release wants them. However many hosts
//! run it, one process writes at a time, of the newest release, and only while the gate leads to its release.
//!
//! ```text
//! cat > settings.toml <<END
//! name = "settings"                 # what is applied, by programs that have a handler of this name
//! release = "1.0.0"                 # by those of this release
//! scope = "web"                     # whose members are asked whether they can live with it
//! floor = "1.0.0"
//! every = "30s"                     # repaired that often
//! handler = true
//! END
//! muster reconciler apply -f settings.toml
//! muster kubeconfig > kubeconfig.yaml          # of Muster's own subset; any other Kubernetes API server will do
//! KUBECONFIG=kubeconfig.yaml config_maps /run/muster/muster.sock host-1 1.0.0
//! ```
//!
//! Muster decides who may write and until when; it cannot stop a request in flight. These rules keep an earlier writer from
//! undoing the work of a later one:
//!
//! - Each write first checks the term by the clock: [`ApplyCtx::is_current`].
//! - Each object carries the fencing token of its last writer. A writer that finds a larger token than its own writes nothing.
//! - Each write names the version of the object that was read, and a new term writes every object once, with its
//!   token. A write decided in an earlier term thus meets another version, and the API server refuses it.
//! - A creation names no version: a late one can restore a deleted object. A term waits for those before it
//!   begins (`settle`), and the next repair deletes unwanted objects.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Client, Error, ResourceExt};
use muster_reconciler::{ApplyCtx, Embedded, Handler, HandlerError, Link, Release, Setup, Socket};

/// The name of the definitions, and the value of the label.
const NAME: &str = "settings";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The fencing token of an object's last writer; it only grows.
const TOKEN: &str = "settings.example.com/fencing-token";
/// Timeout of a request: shorter than the default `settle`, so that no request outlives its term by more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// The objects that a release wants.
fn wanted(release: &Release) -> BTreeMap<&'static str, [(&'static str, &'static str); 1]> {
    match release.triple.major {
        1 => BTreeMap::from([("colours", [("accent", "blue")]), ("greeting", [("text", "hello")])]),
        _ => BTreeMap::from([("greeting", [("text", "welcome")]), ("limits", [("connections", "100")])]),
    }
}

/// The handler.
pub struct ConfigMaps {
    maps: Api<ConfigMap>,
}

/// A pending write of one object. The versions are in the objects.
enum Write {
    Create(ConfigMap),
    Replace(ConfigMap),
    Delete(ConfigMap),
}

impl ConfigMaps {
    pub fn new(client: Client) -> Self {
        Self { maps: Api::default_namespaced(client) }
    }

    /// The differences between existing and wanted objects under this term.
    async fn difference(&self, ctx: &ApplyCtx) -> Result<Vec<Write>, HandlerError> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={NAME}"));
        let mut there: BTreeMap<String, ConfigMap> =
            within(self.maps.list(&ours)).await?.into_iter().map(|map| (map.name_any(), map)).collect();
        if let Some(newer) = there.values().find(|map| token(map) > ctx.fence.0) {
            let (name, theirs, own) = (newer.name_any(), token(newer), ctx.fence);
            return Err(HandlerError::Failed(format!("{name} was written under {theirs}, a later term than {own}")));
        }
        let mut writes = Vec::new();
        for (name, data) in wanted(&ctx.target) {
            let data = BTreeMap::from(data.map(|(key, value)| (key.to_owned(), value.to_owned())));
            match there.remove(name) {
                Some(same) if token(&same) == ctx.fence.0 && same.data.as_ref() == Some(&data) => {}
                Some(map) => writes.push(Write::Replace(stamped(ConfigMap { data: Some(data), ..map }, ctx))),
                None => {
                    let mut map = ConfigMap { data: Some(data), ..ConfigMap::default() };
                    map.metadata.name = Some(name.to_owned());
                    map.labels_mut().insert(MANAGED_BY.to_owned(), NAME.to_owned());
                    writes.push(Write::Create(stamped(map, ctx)));
                }
            }
        }
        writes.extend(there.into_values().map(Write::Delete));
        Ok(writes)
    }

    /// The API server refuses it unless the object is as it was read.
    async fn perform(&self, write: &Write) -> Result<(), HandlerError> {
        let options = PostParams::default();
        match write {
            Write::Create(map) => within(self.maps.create(&options, map)).await.map(drop),
            Write::Replace(map) => within(self.maps.replace(&map.name_any(), &options, map)).await.map(drop),
            Write::Delete(map) => {
                let preconditions = Preconditions { uid: map.uid(), resource_version: map.resource_version() };
                let as_read = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                within(self.maps.delete(&map.name_any(), &as_read)).await.map(drop)
            }
        }
    }

    async fn reconcile(&self, ctx: ApplyCtx) -> Result<(), HandlerError> {
        for write in self.difference(&ctx).await? {
            if !ctx.is_current() {
                return Err(HandlerError::Later("the term is over".to_owned()));
            }
            self.perform(&write).await?;
            println!("{} under {}", said(&write), ctx.fence);
        }
        Ok(())
    }
}

impl Handler for ConfigMaps {
    fn apply(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<(), HandlerError>> {
        let this = Self { maps: self.maps.clone() };
        async move { this.reconcile(ctx).await }.boxed()
    }

    fn plan(&self, ctx: ApplyCtx) -> BoxFuture<'static, Result<Vec<String>, HandlerError>> {
        let this = Self { maps: self.maps.clone() };
        async move { Ok(this.difference(&ctx).await?.iter().map(said).collect()) }.boxed()
    }
}

fn token(map: &ConfigMap) -> u64 {
    map.annotations().get(TOKEN).and_then(|token| token.parse().ok()).unwrap_or(0)
}

fn stamped(mut map: ConfigMap, ctx: &ApplyCtx) -> ConfigMap {
    map.annotations_mut().insert(TOKEN.to_owned(), ctx.fence.to_string());
    map
}

fn said(write: &Write) -> String {
    match write {
        Write::Create(map) => format!("created {}", map.name_any()),
        Write::Replace(map) => format!("replaced {}", map.name_any()),
        Write::Delete(map) => format!("deleted {}", map.name_any()),
    }
}

/// A request, bounded by its usefulness. A faster writer is no failure: the next run reads the objects again.
async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, HandlerError> {
    match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(Error::Api(status))) if status.code == 404 || status.reason == "Conflict" => {
            Err(HandlerError::Later(status.message.clone()))
        }
        Ok(Err(error)) => Err(HandlerError::Failed(error.to_string())),
        Err(_) => Err(HandlerError::Failed(format!("the API server did not answer within {ANSWER_TIMEOUT:?}"))),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let usage = "config_maps SOCKET MEMBER RELEASE";
    let [socket, member, release] = [1, 2, 3].map(|word| std::env::args().nth(word).ok_or(usage));
    let handler: Arc<dyn Handler> = Arc::new(ConfigMaps::new(Client::try_default().await?)); // the file that KUBECONFIG names
    let cluster = Arc::new(Link::new(Socket(socket?.into())));
    let setup = Setup {
        handlers: BTreeMap::from([(NAME.to_owned(), handler)]),
        ..Setup::new(cluster, member?, release?.parse()?) // member names are unique
    };
    let embedded = Embedded::start(setup).await?;
    tokio::signal::ctrl_c().await?;
    embedded.stop().await; // releases the lease, so that another process need not wait for its expiry
    Ok(())
}
