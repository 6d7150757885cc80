//! `muster raft …`

use muster_client::Outcome;
use muster_messages::wire::Request;
use serde_json::Value;

use super::Asking;
use crate::cli::args::RaftCommand;
use crate::cli::output::cell;
use crate::cli::render;

pub async fn run(asking: &mut Asking, command: RaftCommand) -> Outcome<u8> {
    match command {
        RaftCommand::Status(fresh) => {
            let request = Request::RaftStatus { fresh: fresh.fresh };
            asking.show_named(request, |d| cell(&d["leader"]), render::raft).await
        }
        RaftCommand::TransferLeader { node } => {
            let sentence = |d: &Value| match d["leader"].as_str() {
                Some(leader) => format!("{leader} leads"),
                None => "leadership was handed over".to_owned(),
            };
            asking.show_named(Request::TransferLeader { to: node }, |d| cell(&d["leader"]), sentence).await
        }
    }
}
