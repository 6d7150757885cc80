//! The SPIFFE Workload API of a node: programs on it get certificates of the cluster here, without a secret of their own.
//!
//! - [`core`]: which process is which workload, when certificates are renewed, what each open stream is sent. Pure.
//! - [`workload_api_spec`]: the actor `node/workloads`, which serves a Unix socket.
//! - [`WorkloadSigner`]: its way to the leader.
//! - [`explain_process`]: why a process is the workloads that it is.

mod attest;
mod authority;
pub mod client;
pub mod core;
mod explain;
mod jwt;
mod jwt_calls;
mod limits;
pub mod proto;
mod serve;
mod shell;
mod shown;
mod socket;
mod svid;

pub use self::explain::explain_process;
pub use self::shell::{Ask, Msg, WorkloadApiPorts, workload_api_address, workload_api_spec};
pub use self::socket::{WorkloadSocketFault, check_socket_path};
pub use self::svid::WorkloadSigner;
