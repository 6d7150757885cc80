//! Lists the nodes of a cluster: `cargo run -p muster-client --example nodes [SOCKET]`. Without a daemon it prints that, and exits as `muster` does.

use std::process::ExitCode;
use std::time::Duration;

use muster_client::{Client, Outcome};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let socket = std::env::args().nth(1).unwrap_or_else(|| "/run/muster/muster.sock".to_owned());
    match show(&socket).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit.into()
        }
    }
}

async fn show(socket: &str) -> Outcome {
    let mut client = Client::to_socket(socket, Duration::from_secs(5));
    for node in client.nodes().await?.items {
        println!("{}  {}  {:?}", node.name, node.role, node.state);
    }
    Ok(())
}
