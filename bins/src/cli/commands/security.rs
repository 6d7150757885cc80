//! `muster cert …`, `muster blocklist ls`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};
use muster_messages::{BlockedListView, CertificateRotationView, ListView, NodeCertificateView};

use super::Context;
use super::node::each;
use crate::cli::args::{BlocklistCommand, CertCommand};
use crate::cli::output::lines;
use crate::cli::render;

pub async fn cert(ctx: &mut Context, command: CertCommand) -> Outcome<u8> {
    match command {
        CertCommand::Ls => {
            let nodes = |list: &ListView<NodeCertificateView>| lines(list.items.iter().map(|item| item.node));
            ctx.show_list(ListOf::Certificates, true, nodes, render::certs).await
        }
        CertCommand::Rotate { nodes, revoke: true } => {
            let sentence = |rotation: &CertificateRotationView| {
                format!("{} will renew its certificate; earlier ones are then revoked", rotation.node)
            };
            each(ctx, nodes, sentence, |node| Request::CertRevoke { node }).await
        }
        CertCommand::Rotate { nodes, revoke: false } => {
            let sentence = |rotation: &CertificateRotationView| format!("{} will renew its certificate", rotation.node);
            each(ctx, nodes, sentence, |node| Request::CertRotate { node }).await
        }
    }
}

pub async fn blocklist(ctx: &mut Context, command: BlocklistCommand) -> Outcome<u8> {
    match command {
        BlocklistCommand::Ls(fresh) => {
            let nodes = |list: &BlockedListView| lines(list.items.iter().map(|item| item.node_id));
            ctx.show_list(ListOf::Blocklist, fresh.fresh, nodes, render::blocklist).await
        }
    }
}
