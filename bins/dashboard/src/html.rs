//! The elements that pages are made of. Names, labels, reasons and outputs come from nodes: each of them passes through [`text`].

use maud::{Markup, html};
use muster_messages::{WallTime, in_short};

use crate::actions::Action;

/// Characters of one text that are shown.
const MAX_TEXT: usize = 1024;

/// An untrusted text: without what moves a cursor or reverses the reading direction, and not endless. The template escapes it.
pub fn text(text: &str) -> String {
    let shown = in_short(text, MAX_TEXT);
    shown.chars().map(|c| if misleads(c) { '\u{fffd}' } else { c }).collect()
}

/// Control characters but those that separate, and those of bidirectional text.
fn misleads(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c, '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// How good something is. The page shows a shape and the word beside the color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    Good,
    /// Neither: nothing to do.
    Plain,
    Warn,
    Bad,
}

/// A word with its grade.
pub fn graded(grade: Grade, word: &str) -> Markup {
    let (class, shape) = match grade {
        Grade::Good => ("good", "●"),
        Grade::Plain => ("plain", "○"),
        Grade::Warn => ("warn", "▲"),
        Grade::Bad => ("bad", "■"),
    };
    html! { span class=(class) { span aria-hidden="true" { (shape) } " " (text(word)) } }
}

/// A time in UTC, to the second; the script adds how long ago or ahead it is.
pub fn time(at: impl Into<Option<WallTime>>) -> Markup {
    let Some(at) = at.into() else { return html! { "-" } };
    let whole = at.to_string();
    let shown = whole.split('.').next().unwrap_or(&whole).replacen('T', " ", 1);
    html! { time datetime=(whole) { (shown) span.age {} } }
}

/// An id, shortened; the whole one is in its title.
pub fn id(id: &str) -> Markup {
    let short: String = id.chars().take(8).collect();
    html! { code title=(text(id)) { (text(&short)) } }
}

/// `-` for nothing.
pub fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| text(&value.to_string()))
}

/// A command for a terminal. Its arguments may be names that others chose, and the page's address may be a stranger's: they are
/// quoted for the shell, and what is copied is one line.
pub fn command(args: &[&str]) -> Markup {
    let line = line(args);
    html! {
        p.command { "In a terminal: " code { (line) } " " button type="button" data-copy=(line) { "copy" } }
    }
}

/// A line for a POSIX shell.
pub fn line(args: &[&str]) -> String {
    args.iter().map(|arg| quoted(arg)).collect::<Vec<_>>().join(" ")
}

/// An argument for a POSIX shell.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    let shown: String = text(arg).chars().filter(|c| !c.is_control()).collect();
    if !shown.is_empty() && shown.chars().all(plain) { shown } else { format!("'{}'", shown.replace('\'', "'\\''")) }
}

/// A page of this dashboard, with a query.
pub fn address(path: &str, query: &[(&str, &str)]) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// A link to a page of this dashboard.
pub fn link(path: &str, query: &[(&str, &str)], shown: &str) -> Markup {
    html! { a href=(address(path, query)) { (text(shown)) } }
}

/// A link to a node's page.
pub fn node_link(name: &str) -> Markup {
    link("/nodes", &[("node", name)], name)
}

/// A filter above a table: the script puts it into the page's address.
pub fn filter(name: &'static str, label: &str, value: &str) -> Markup {
    html! {
        p.filter { label { (label) " " input type="search" name=(name) value=(text(value)) data-filter autocomplete="off" spellcheck="false"; } }
    }
}

/// A button for an action, which the script confirms in a dialog. `typed`: what a person must type, where it cannot be undone.
pub fn action(action: &Action, label: &str, explained: &str, typed: Option<&str>) -> Markup {
    let action = serde_json::to_string(action).unwrap_or_default();
    // The same JSON: it must reach the server as it is, and must not mislead a reader of the page's source.
    let escaped = |c: char| if misleads(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let action: String = action.chars().map(escaped).collect();
    html! { button type="button" data-action=(action) data-explained=(text(explained)) data-typed=[typed.map(text)] { (label) } " " }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_escaped_cut_and_without_controls() {
        let hostile = "<img src=x onerror=alert(1)></script>\u{202e}evil\u{1b}[2J\u{200b}";
        let shown = graded(Grade::Bad, hostile).into_string();
        assert!(shown.contains("&lt;img") && !shown.contains("<img") && !shown.contains("</script>"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{1b}', '\u{200b}']), "{shown}");
        assert_eq!(text(&"x".repeat(5000)).chars().count(), MAX_TEXT + 1);
        let quoted = link("/nodes", &[("node", "\" onclick=\"x")], "x").into_string();
        assert_eq!(quoted, "<a href=\"/nodes?node=%22+onclick%3D%22x\">x</a>");
        assert!(id("\"><b>").into_string().starts_with("<code title=\"&quot;&gt;&lt;b&gt;\""));
    }

    #[test]
    fn arguments_of_commands_are_quoted_on_one_line() {
        for (arg, shown) in [
            ("n1", "n1"),
            ("node/manager", "node/manager"),
            ("", "''"),
            ("n1; touch /tmp/x\n", "'n1; touch /tmp/x'"),
            ("it's $(x)", "'it'\\''s $(x)'"),
            ("-a\u{202e}", "'-a\u{fffd}'"),
        ] {
            assert_eq!(quoted(arg), shown, "{arg:?}");
        }
    }

    #[test]
    fn times_are_utc_to_the_second() {
        let shown = time(WallTime(1_700_000_000_123)).into_string();
        assert_eq!(
            shown,
            "<time datetime=\"2023-11-14T22:13:20.123Z\">2023-11-14 22:13:20<span class=\"age\"></span></time>"
        );
        assert_eq!(time(None).into_string(), "-");
    }
}
