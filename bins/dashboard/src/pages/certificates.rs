//! What runs out, the soonest first: certificates, users, join tokens, roots.

use maud::{Markup, html};
use muster_messages::{CertificateState, NodeCertificateView, RootView, TokenView, UserView, WallTime, word};

use super::{Seen, none_of};
use crate::document::{Part, Row, Table};
use crate::html::{Grade, command, graded, node_link, or_dash, text, time};

/// Rows of each table.
const MAX_ROWS: usize = 100;

pub fn page(seen: &Seen) -> Vec<Part> {
    let progress = html! {
        @if let Some(roots) = seen.roots() {
            p {
                "Root rotation: " (word(roots.phase))
                @if let Some(target) = roots.target { ", to " (text(&target.to_string())) }
                @if roots.users_outdated > 0 { "; " (roots.users_outdated) " users have certificates of another root" }
            }
        }
    };
    vec![
        Part::Table(certificates(seen)),
        Part::Table(roots(seen)),
        Part::Block("rotation", progress),
        Part::Table(users(seen)),
        Part::Table(tokens(seen)),
        Part::Block(
            "command",
            html! { (command(&["muster", "cert", "ls"])) (command(&["muster", "ca", "ls"])) (command(&["muster", "user", "ls"])) (command(&["muster", "token", "ls"])) },
        ),
    ]
}

/// When it ends, as a grade.
fn until(seen: &Seen, at: impl Into<Option<WallTime>>) -> Markup {
    let at = at.into();
    match at {
        Some(end) if end <= seen.now => html! { (graded(Grade::Bad, "expired")) " " (time(end)) },
        other => time(other),
    }
}

fn certificates(seen: &Seen) -> Table {
    let all = seen.certificates();
    let mut shown: Vec<&NodeCertificateView> = all.into_iter().flatten().collect();
    shown.sort_by_key(|certificate| (certificate.state != CertificateState::Failed, certificate.not_after));
    let row = |certificate: &&NodeCertificateView| {
        let name = certificate.name.as_ref().map_or_else(|| certificate.node.to_string(), ToString::to_string);
        let state = match certificate.state {
            CertificateState::Issued => Grade::Good,
            CertificateState::Failed => Grade::Bad,
            _ => Grade::Warn,
        };
        Row::new(
            certificate.node.as_str(),
            vec![
                node_link(&name),
                html! { (or_dash(certificate.role)) },
                graded(state, &word(certificate.state)),
                until(seen, certificate.not_after),
                html! { code { (or_dash(certificate.serial.as_ref().map(|serial| serial.chars().take(8).collect::<String>()))) } },
                html! { (or_dash(certificate.issuer)) },
            ],
        )
    };
    Table {
        id: "certificates",
        caption: match all {
            Some(all) => format!("Node certificates, the first to expire first ({} in all)", all.len()),
            None => "Node certificates".to_owned(),
        },
        headings: &["Node", "Role", "State", "Not after", "Serial", "Root"],
        rows: shown.iter().take(MAX_ROWS).map(row).collect(),
        empty: none_of("certificates", all.is_some()),
    }
}

fn roots(seen: &Seen) -> Table {
    let all = seen.roots();
    let row = |root: &RootView| {
        let state = word(root.state);
        let shown = if root.compromised {
            graded(Grade::Bad, &format!("{state}, compromised"))
        } else {
            html! { (state) }
        };
        Row::new(
            root.id.to_string(),
            vec![
                html! { (text(&root.id.to_string())) },
                shown,
                html! { (word(root.origin)) },
                until(seen, root.not_after),
                html! { (root.issued) " issued, " (root.outdated) " to be renewed" },
                html! { code { (text(&root.digest)) } },
            ],
        )
    };
    Table {
        id: "roots",
        caption: "Roots".to_owned(),
        headings: &["Root", "State", "Origin", "Not after", "Certificates", "Digest"],
        rows: all.into_iter().flat_map(|roots| &roots.items).map(row).collect(),
        empty: none_of("roots", all.is_some()),
    }
}

fn users(seen: &Seen) -> Table {
    let all = seen.users();
    let mut shown: Vec<&UserView> = all.into_iter().flatten().collect();
    shown.sort_by_key(|user| user.not_after);
    let row = |user: &&UserView| {
        let rights = match (user.admin, user.read_only) {
            (true, _) => "operator".to_owned(),
            (_, true) => "read-only operator".to_owned(),
            _ => user.namespaces.join(", "),
        };
        Row::new(
            user.name.to_string(),
            vec![
                html! { (text(user.name.as_str())) },
                html! { (text(&rights)) },
                until(seen, user.not_after),
                html! { (or_dash(user.issuer)) },
            ],
        )
    };
    Table {
        id: "users",
        caption: "Users, the first to expire first".to_owned(),
        headings: &["Name", "Rights", "Not after", "Root"],
        rows: shown.iter().take(MAX_ROWS).map(row).collect(),
        empty: none_of("users", all.is_some()),
    }
}

fn tokens(seen: &Seen) -> Table {
    let all = seen.tokens();
    let row = |token: &TokenView| {
        let end = token.expires_at.map_or_else(|| html! { "never" }, |end| until(seen, end));
        let left = token.uses_left.map_or_else(|| "any number".to_owned(), |left| left.to_string());
        Row::new(
            token.id.clone(),
            vec![html! { code { (text(&token.id)) } }, html! { (word(token.role)) }, end, html! { (left) }],
        )
    };
    Table {
        id: "tokens",
        caption: "Join tokens".to_owned(),
        headings: &["Id", "Role", "Expires", "Joins left"],
        rows: all.into_iter().flatten().take(MAX_ROWS).map(row).collect(),
        empty: none_of("join tokens", all.is_some()),
    }
}
