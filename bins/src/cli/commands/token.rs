//! `muster token …`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};

use super::Context;
use crate::cli::args::TokenCommand;
use crate::cli::duration::millis;
use crate::cli::output::cell;
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: TokenCommand) -> Outcome<u8> {
    let request = match command {
        TokenCommand::Ls => {
            return ctx.show_list(ListOf::Tokens, true, "id", render::tokens).await;
        }
        TokenCommand::Revoke { id } => {
            let sentence = format!("token {id} is revoked");
            return ctx.show(Request::TokenRevoke { id }, |_| String::new(), |_| sentence).await;
        }
        TokenCommand::Create { role, ttl, uses } => Request::TokenCreate { role, ttl_ms: ttl.map(millis), uses },
        TokenCommand::Rotate { role } => Request::TokenRotate { role },
        TokenCommand::Show { role } => Request::TokenShow { role },
    };
    ctx.show(request, |d| cell(&d["token"]), render::token).await
}
