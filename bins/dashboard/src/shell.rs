//! What every page begins as, and its assets: compiled in, and without a datum of the cluster.

use std::sync::OnceLock;

use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use crate::pages::PLACES;

/// An asset by its name, and its type.
pub fn asset(name: &str) -> Option<(&'static str, &'static str)> {
    Some(match name {
        _ if name == assets().script => ("text/javascript; charset=utf-8", SCRIPT),
        _ if name == assets().style => ("text/css; charset=utf-8", STYLE),
        _ if name == assets().mark => ("image/svg+xml", MARK),
        _ => return None,
    })
}

const SCRIPT: &str = include_str!("../assets/dashboard.js");
const STYLE: &str = include_str!("../assets/dashboard.css");
const MARK: &str = include_str!("../assets/mark.svg");

/// The names of the assets: each has a digest, so that another release's are other files.
pub struct Assets {
    pub script: String,
    pub style: String,
    pub mark: String,
}

pub fn assets() -> &'static Assets {
    static ASSETS: OnceLock<Assets> = OnceLock::new();
    let named = |text: &str, ending: &str| {
        let digest: String = Sha256::digest(text).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("{digest}.{ending}")
    };
    ASSETS.get_or_init(|| Assets { script: named(SCRIPT, "js"), style: named(STYLE, "css"), mark: named(MARK, "svg") })
}

/// What every page begins as: no datum of the cluster, so everyone may have it.
pub fn shell(actions: bool) -> Markup {
    let Assets { script, style, mark } = assets();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Muster" }
                link rel="icon" href={ "/assets/" (mark) };
                link rel="stylesheet" href={ "/assets/" (style) };
                script type="module" src={ "/assets/" (script) } {}
            }
            body {
                a.skip href="#main" { "Skip to the page" }
                header {
                    span.name { "Muster" }
                    @if actions { span.warn { span aria-hidden="true" { "▲ " } "actions are on" } }
                    nav aria-label="Pages" {
                        ul { @for (path, name, key) in PLACES { li { a href=(path) data-key=(key) { (name) } } } }
                    }
                    p.tools {
                        button type="button" id="theme" { "theme: system" }
                        " "
                        button type="button" id="help" { "keys" }
                        " "
                        button type="button" id="logout" hidden { "log out" }
                    }
                }
                p.cut id="cut" role="alert" hidden { span aria-hidden="true" { "■ " } "No answer from this dashboard for " span id="cut-age" {} ". What is below is old." }
                p.visually-hidden id="announced" role="status" {}
                main id="main" tabindex="-1" {
                    noscript { p { "This page is drawn by a script of its own server, and by nothing else." } }
                    p id="start" { "…" }
                }
                dialog id="act" aria-labelledby="act-title" {
                    h2 id="act-title" {}
                    p id="act-text" {}
                    p id="act-typed" hidden { label { "Type " strong id="act-name" {} " to confirm: " input id="act-input" autocomplete="off" spellcheck="false"; } }
                    p id="act-outcome" role="status" {}
                    p { button type="button" id="act-do" {} " " button type="button" id="act-close" { "close" } }
                }
                dialog id="keys" aria-labelledby="keys-title" {
                    h2 id="keys-title" { "Keys" }
                    dl.facts {
                        @for (_, name, key) in PLACES { dt { kbd { "g" } " " kbd { (key) } } dd { (name) } }
                        dt { kbd { "/" } } dd { "filter" }
                        dt { kbd { "j" } " " kbd { "k" } } dd { "next, previous row" }
                        dt { kbd { "Enter" } } dd { "open" }
                        dt { kbd { "?" } } dd { "this" }
                    }
                    p { label { input type="checkbox" id="keys-on" checked; " keys of one character are on" } }
                    p { button type="button" id="keys-close" { "close" } }
                }
            }
        }
    }
}
