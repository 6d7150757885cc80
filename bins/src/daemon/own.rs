//! A program's own actors in the daemon's tree.

use std::path::PathBuf;
use std::sync::Arc;

use muster_kernel::{Children, Fault, Intensity, Spec};
use muster_messages::NodeId;

use super::node::Shared;

/// The daemon around a program's own actors.
#[derive(Clone, Debug)]
pub struct Host {
    /// The node that it is.
    pub node: NodeId,
    /// Its admin socket. It serves already, and refuses until there is a leader.
    pub socket: PathBuf,
    /// Its data directory. Names that begin with `own-` are never used by the daemon itself.
    pub data_dir: PathBuf,
}

/// Starts them.
pub type Start = Arc<dyn Fn(&Host, &Children) -> Result<(), Fault> + Send + Sync>;

/// Their group. Contained: Muster never stops because of them.
pub fn spec(shared: &Shared, start: Start) -> Spec {
    let host = Host { node: shared.me, socket: shared.config.socket.clone(), data_dir: shared.config.data_dir.clone() };
    Spec::group("own", Intensity::default(), move |children| start(&host, children)).contained()
}
