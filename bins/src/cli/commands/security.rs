//! `muster cert …`, `muster ca show`, `muster blocklist ls`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};

use super::Context;
use super::node::each;
use crate::cli::args::{BlocklistCommand, CaCommand, CertCommand};
use crate::cli::output::cell;
use crate::cli::render;

pub async fn cert(ctx: &mut Context, command: CertCommand) -> Outcome<u8> {
    match command {
        CertCommand::Ls => ctx.show_list(ListOf::Certificates, true, "node", render::certs).await,
        CertCommand::Rotate { nodes, revoke: true } => {
            let sentence = |d: &serde_json::Value| {
                format!("{} will renew its certificate; earlier ones are then revoked", cell(&d["node"]))
            };
            each(ctx, nodes, sentence, |node| Request::CertRevoke { node }).await
        }
        CertCommand::Rotate { nodes, revoke: false } => {
            let sentence = |d: &serde_json::Value| {
                let name = if d["name"].is_null() { &d["node"] } else { &d["name"] };
                format!("{} will renew its certificate", cell(name))
            };
            each(ctx, nodes, sentence, |node| Request::CertRotate { node }).await
        }
    }
}

pub async fn ca(ctx: &mut Context, command: CaCommand) -> Outcome<u8> {
    match command {
        CaCommand::Show => ctx.show(Request::CaShow, |d| cell(&d["digest"]), render::ca).await,
    }
}

pub async fn blocklist(ctx: &mut Context, command: BlocklistCommand) -> Outcome<u8> {
    match command {
        BlocklistCommand::Ls(fresh) => {
            ctx.show_list(ListOf::Blocklist, fresh.fresh, "node_id", render::blocklist).await
        }
    }
}
