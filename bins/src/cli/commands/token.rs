//! `muster token …`

use muster_client::Outcome;
use muster_messages::wire::{ListOf, Request};
use muster_messages::{ListView, TokenTextView, TokenView};

use super::Context;
use crate::cli::args::TokenCommand;
use crate::cli::duration::millis;
use crate::cli::output::{lines, printable};
use crate::cli::render;

pub async fn run(ctx: &mut Context, command: TokenCommand) -> Outcome<u8> {
    let request = match command {
        TokenCommand::Ls => {
            let ids = |list: &ListView<TokenView>| lines(list.items.iter().map(|token| &token.id));
            return ctx.show_list(ListOf::Tokens, true, ids, render::tokens).await;
        }
        TokenCommand::Revoke { id } => {
            let sentence = format!("token {id} is revoked");
            return ctx.done(Request::TokenRevoke { id }, &sentence).await;
        }
        TokenCommand::Create { role, ttl, uses } => Request::TokenCreate { role, ttl_ms: ttl.map(millis), uses },
        TokenCommand::Rotate { role } => Request::TokenRotate { role },
        TokenCommand::Show { role } => Request::TokenShow { role },
    };
    ctx.show(request, |token: &TokenTextView| printable(&token.token), render::token).await
}
