//! `muster cert …`, `muster ca show`, `muster blocklist ls`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};

use super::Asking;
use super::node::each;
use crate::cli::args::{BlocklistCommand, CaCommand, CertCommand};
use crate::cli::output::cell;
use crate::cli::render;

pub async fn cert(asking: &mut Asking, command: CertCommand) -> Outcome<u8> {
    match command {
        CertCommand::Ls => asking.show_list(ListOf::Certificates, true, "node", render::certs).await,
        CertCommand::Rotate { nodes, revoke: true } => {
            let sentence = |d: &serde_json::Value| {
                format!("{} will renew its certificate; the ones before are refused once it has", cell(&d["node"]))
            };
            each(asking, nodes, sentence, |node| Request::CertRevoke { node }).await
        }
        CertCommand::Rotate { nodes, revoke: false } => {
            let sentence = |d: &serde_json::Value| {
                let name = if d["name"].is_null() { &d["node"] } else { &d["name"] };
                format!("{} will renew its certificate", cell(name))
            };
            each(asking, nodes, sentence, |node| Request::CertRotate { node }).await
        }
    }
}

pub async fn ca(asking: &mut Asking, command: CaCommand) -> Outcome<u8> {
    match command {
        CaCommand::Show => asking.show(Request::CaShow, |d| cell(&d["digest"]), render::ca).await,
    }
}

pub async fn blocklist(asking: &mut Asking, command: BlocklistCommand) -> Outcome<u8> {
    match command {
        BlocklistCommand::Ls(fresh) => {
            asking.show_list(ListOf::Blocklist, fresh.fresh, "node_id", render::blocklist).await
        }
    }
}
