//! Rules for messages between actors and between processes.

use super::{Text, has_word, report, texts};

/// One enum per actor: those whose name ends with `Msg`. The others are parts of messages.
const PROTOCOL: &str = "messages/src/protocol/";
/// Types that leave a process: every enum is a message, a frame, a call or an answer, with these exceptions.
const WIRE: &str = "messages/src/wire/";

/// Enums of the wire that are not messages, each with its reason. This list only shrinks.
const NOT_MESSAGES: [(&str, &str); 4] = [
    ("ActorsOf", "names the processes of a `Request::Actors`"),
    ("EntryKind", "names what an entry within a Raft message holds"),
    ("ListOf", "names the list of a `Request::Page`"),
    ("WireError", "why bytes are not a value; it stays in the process that decodes"),
];

/// What the doc comment of a variant, or of its enum, speaks of: each by one of these words.
const DELIVERY: [(&str, &[&str]); 3] =
    [("loss", &["Lost", "lost"]), ("repetition", &["Repeated", "repeated"]), ("lateness", &["Late", "late", "later"])];
/// Short forms for all of it, which the doc comment of the enum, or of the enum that it names, defines.
const SHORT_FORMS: [&str; 3] = ["Read: repeat freely", "Write: by request id", "See [`"];

/// The actors of the leader: what an old one answers, by its own phrase, is said of each of their messages, too.
const OF_THE_LEADER: [&str; 7] = [
    "AutopilotMsg",
    "CertAuthorityMsg",
    "DispatcherMsg",
    "ElectionsMsg",
    "PeerCall",
    "RoleManagerMsg",
    "RootRotationMsg",
];
const FROM_AN_OLD_LEADER: &str = "From an old leader";

struct Variant<'a> {
    name: &'a str,
    line: usize,
    doc: String,
}

struct Enum<'a> {
    name: &'a str,
    doc: String,
    variants: Vec<Variant<'a>>,
}

/// The public enums of a file, by the formatter's layout: variants and their comments are indented by four
/// spaces, fields by eight.
fn enums(file: &Text) -> Vec<Enum<'_>> {
    let mut found: Vec<Enum<'_>> = Vec::new();
    let mut inside = false;
    let mut doc = String::new();
    for (index, line) in file.text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("pub enum ") {
            let name = rest.split([' ', '<']).next().unwrap_or(rest);
            found.push(Enum { name, doc: std::mem::take(&mut doc), variants: Vec::new() });
            inside = true;
        } else if line == "}" {
            inside = false;
            doc.clear();
        } else if let Some(text) = line.strip_prefix("///").filter(|_| !inside) {
            doc.push_str(text);
        } else if !inside && !line.starts_with('#') {
            doc.clear();
        }
        let Some(item) = line.strip_prefix("    ").filter(|_| inside) else { continue };
        if let Some(text) = item.strip_prefix("///") {
            doc.push_str(text);
        } else if item.starts_with(|c: char| c.is_ascii_uppercase()) {
            let name = item.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(item);
            let variant = Variant { name, line: index + 1, doc: std::mem::take(&mut doc) };
            found.last_mut().expect("a variant is inside an enum").variants.push(variant);
        }
    }
    found
}

fn is_message(path: &str, name: &str) -> bool {
    if path.starts_with(PROTOCOL) {
        name.ends_with("Msg")
    } else {
        NOT_MESSAGES.iter().all(|(other, _)| *other != name)
    }
}

#[test]
fn messages_document_loss_repetition_and_lateness() {
    let mut violations = Vec::new();
    let mut unused: Vec<&str> = NOT_MESSAGES.iter().map(|(name, _)| *name).collect();
    let wanted = |path: &str| path.ends_with(".rs") && (path.starts_with(PROTOCOL) || path.starts_with(WIRE));
    for file in texts(wanted) {
        for found in enums(&file) {
            if !is_message(&file.path, found.name) {
                unused.retain(|name| *name != found.name);
                continue;
            }
            if found.variants.is_empty() {
                violations.push(format!("{}: {} has no variant that this test can parse", file.path, found.name));
            }
            for Variant { name, line, doc } in found.variants {
                if SHORT_FORMS.iter().any(|form| doc.contains(form)) {
                    continue;
                }
                let says = |word: &&str| has_word(&doc, word) || has_word(&found.doc, word);
                for (what, _) in DELIVERY.iter().filter(|(_, words)| !words.iter().any(says)) {
                    violations.push(format!("{}:{line}: {}::{name}: {what}", file.path, found.name));
                }
            }
        }
    }
    violations.extend(unused.iter().map(|name| format!("{name} is listed as an exception and does not exist")));
    report("a message says what happens when it is lost, repeated or late", &violations);
}

#[test]
fn messages_say_what_an_old_leader_answers() {
    let mut violations = Vec::new();
    let mut unseen: Vec<&str> = OF_THE_LEADER.to_vec();
    for file in texts(|path| path.ends_with(".rs") && (path.starts_with(PROTOCOL) || path.starts_with(WIRE))) {
        for found in enums(&file).into_iter().filter(|found| OF_THE_LEADER.contains(&found.name)) {
            unseen.retain(|name| *name != found.name);
            let says = |doc: &str| doc.contains(FROM_AN_OLD_LEADER);
            for Variant { name, line, doc } in found.variants.iter().filter(|v| !says(&v.doc) && !says(&found.doc)) {
                violations.push(format!("{}:{line}: {}::{name}: {}", file.path, found.name, doc.trim()));
            }
        }
    }
    violations.extend(unseen.iter().map(|name| format!("{name} does not exist")));
    report("a message to an actor of the leader says what an old leader answers", &violations);
}

#[test]
fn variants_are_parsed_with_their_comments() {
    let text = "/// Lost.\npub enum AMsg {\n    /// Asks\n    /// one thing.\n    #[serde(skip)]\n    Ask {\n        /// Late.\n        \
                Id: u64,\n    },\n    Bare(u8),\n}\n\nimpl AMsg {\n    /// Repeated.\n    Not {}\n}\n";
    let file = Text { path: "x.rs".into(), text: text.into() };
    let found = enums(&file);
    let read: Vec<_> = found.iter().flat_map(|e| &e.variants).map(|v| (v.name, v.line, v.doc.as_str())).collect();
    assert_eq!(found.iter().map(|e| (e.name, e.doc.as_str())).collect::<Vec<_>>(), [("AMsg", " Lost.")]);
    assert_eq!(read, [("Ask", 6, " Asks one thing."), ("Bare", 10, "")]);
}
