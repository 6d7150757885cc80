//! `muster raft …`

use muster_client::Outcome;
use muster_messages::wire::Request;
use muster_messages::{LeaderView, RaftStatusView};

use super::Context;
use crate::cli::args::RaftCommand;
use crate::cli::output::or_dash;
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: RaftCommand) -> Outcome<u8> {
    match command {
        RaftCommand::Status(fresh) => {
            let request = Request::RaftStatus { fresh: fresh.fresh };
            ctx.show_named(request, |status: &RaftStatusView| or_dash(status.leader), render::raft).await
        }
        RaftCommand::TransferLeader { node } => {
            let sentence = |view: &LeaderView, names: &render::Names| match view.leader {
                Some(leader) => format!("{} is the leader", render::node_name(leader, names)),
                None => "leadership was transferred".to_owned(),
            };
            let request = Request::TransferLeader { to: node };
            ctx.show_named(request, |view: &LeaderView| or_dash(view.leader), sentence).await
        }
    }
}
