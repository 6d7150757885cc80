//! `muster raft …`

use muster_client::Outcome;
use muster_messages::wire::Request;
use serde_json::Value;

use super::Context;
use crate::cli::args::RaftCommand;
use crate::cli::output::cell;
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: RaftCommand) -> Outcome<u8> {
    match command {
        RaftCommand::Status(fresh) => {
            let request = Request::RaftStatus { fresh: fresh.fresh };
            ctx.show_named(request, |d| cell(&d["leader"]), render::raft).await
        }
        RaftCommand::TransferLeader { node } => {
            let sentence = |d: &Value| match d["leader"].as_str() {
                Some(leader) => format!("{leader} is the leader"),
                None => "leadership was transferred".to_owned(),
            };
            ctx.show_named(Request::TransferLeader { to: node }, |d| cell(&d["leader"]), sentence).await
        }
    }
}
